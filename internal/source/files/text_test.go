package files

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// inUTF16 encodes text with a byte order mark.
func inUTF16(text string, order binary.AppendByteOrder) string {
	var b []byte
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

// node returns the manifest of a Node, without a line end.
func node(name string) string {
	return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}"
}

func jsonNode(name string) string {
	return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + name + `"}}`
}

// No document of a file is lost, whatever its encoding and separators are: all are read, or the file is an error that
// names the cause.
func TestNoDocumentIsLost(t *testing.T) {
	two := node("a") + "\n---\n" + node("b") + "\n"
	const lost = "would be lost"
	for _, tc := range []struct {
		name, in string
		problem  string // part of it; empty: both are read
	}{
		{"UTF-8", two, ""},
		{"UTF-8 with a byte order mark", "\ufeff" + two, ""},
		{
			"UTF-16 LE", inUTF16(two, binary.LittleEndian),
			"f: the text is in UTF-16 or UTF-32, or is not text; save it in UTF-8",
		},
		{"UTF-16 BE", inUTF16(two, binary.BigEndian), "UTF-16"},
		{"UTF-16 without a byte order mark", inUTF16(two, binary.LittleEndian)[2:], "UTF-16"},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", "UTF-32"},
		{"Latin-1 in a comment", "\n# gr\xfc\xdfe\n" + two, "f: line 2: the text is not in UTF-8"},
		{"CR", strings.ReplaceAll(two, "\n", "\r"), "f: line 1: a CR without LF; the text after it " + lost},
		{"CR LF", strings.ReplaceAll(two, "\n", "\r\n"), ""},
		{"NEL", strings.ReplaceAll(two, "\n", "\u0085"), lost},
		{"line separators", strings.ReplaceAll(two, "\n", "\u2028"), lost},
		{"paragraph separators", strings.ReplaceAll(two, "\n", "\u2029"), lost},
		{"a line separator before the dashes", node("a") + "\u2028---\n" + node("b"), lost},
		{"dots", node("a") + "\n...\n" + node("b") + "\n...\n", "f: line 4: the text after this mark " + lost},
		{"dots and dashes", node("a") + "\n...\n---\n" + node("b") + "\n... # end\n", ""},
		{"dots and a comment", node("a") + "\n... # end\n# why\n" + node("b"), lost},
		{"dots and text", node("a") + "\n... b\n---\n" + node("b"), lost},
		{"dashes and a comment", "--- # one\n" + node("a") + "\n--- # two\n" + node("b"), ""},
		{
			"dashes and a tag", "--- !!map\n" + node("a") + "\n--- !own\n" + node("b"),
			"f: line 1 or later: invalid Yaml document separator: !!map; write it in the next line",
		},
		{"dashes and a tab", "---\t\n" + node("a") + "\n---\t# c\n" + node("b"), ""},
		{
			"dashes and content", jsonNode("a") + "\n--- {apiVersion: v1, kind: Node, metadata: {name: b}}\n",
			"f: line 1 or later: invalid Yaml document separator",
		},
		{"a directive", "%YAML 1.1\n---\n" + node("a") + "\n---\n" + node("b"), "did not find expected <document start>"},
		{"a byte order mark before the dashes", node("a") + "\n\ufeff---\n" + node("b"), lost},
		{"empty documents", "---\n---\n# c\n---\n" + node("a") + "\n---\nnull\n---\n~\n---\n" + node("b") + "\n---\n", ""},
		{"JSON in a row", jsonNode("a") + jsonNode("b"), ""},
		{"JSON in lines", jsonNode("a") + "\r" + jsonNode("b") + "\n", ""},
		{"JSON between dashes", "---\n" + jsonNode("a") + "\n---\n" + jsonNode("b") + "\n---\n", ""},
		{"JSON and a comment", jsonNode("a") + " # c\n---\n" + jsonNode("b") + "\n# c\n", ""},
		{"JSON, then YAML", jsonNode("a") + "\n---\n" + node("b"), ""},
		{"YAML, then JSON", node("a") + "\n---\n" + jsonNode("b"), ""},
		{"JSON with dashes in a string", `{"apiVersion":"v1","kind":"Node","metadata":{"annotations":{"x":"` +
			"\u2028---\u2028" + `"},"name":"a"}}` + "\n---\n" + node("b"), ""},
		{"JSON and dashes in its line", jsonNode("a") + " ---\n" + node("b"), "f: line 1: invalid character '-'"},
		{"YAML in braces", "{apiVersion: v1, kind: Node, metadata: {name: a}}\n---\n" + node("b"), ""},
		{
			"YAML in braces and more", "# c\n{apiVersion: v1, kind: Node, metadata: {name: a}} {}\n---\n" + node("b"),
			"f: line 1 or later: the text after the end of the value would be lost",
		},
		{
			"a broken document between good ones", node("a") + "\n---\n{\"x\": 1,\n\n}}\n---\n" + node("b"),
			"f: line 5: invalid character",
		},
		{"a text in quotes over the dashes", "a: \"b\n---\n\"\n---\n" + node("b"), "found unexpected"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(tc.in)
			all := strings.Join(problemsOf(c), "\n")
			if tc.problem != "" {
				if !c.isBroken || !strings.Contains(all, tc.problem) {
					t.Errorf("broken %v, problems %s\nwant %s", c.isBroken, all, tc.problem)
				}
				return
			}
			if d := cmp.Diff([]string{"Node a", "Node b"}, objectsOf(c)); d != "" || all != "" {
				t.Errorf("objects (-want +got):\n%s%s", d, all)
			}
		})
	}
}

// countYAML returns the number of documents other than null that a YAML parser finds, and false for an error.
func countYAML(text []byte) (int, bool) {
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	for n := 0; ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return n, true
		}
		if err != nil {
			return 0, false
		}
		if len(doc.Content) > 0 && doc.Content[0].Tag != "!!null" {
			n++
		}
	}
}

// A file that has no problem has as many documents as a YAML parser finds in the whole text.
func FuzzDocuments(f *testing.F) {
	for _, s := range []string{
		node("a") + "\n---\n" + node("b") + "\n...\n", "%YAML 1.1\n---\n" + node("a"), node("a") + "\r---\r" + node("b"),
		"\ufeff---\n\ufeff" + node("a") + "\n",
		"--- # c\n--- !!str x\n", node("a") + "\n... # c\n...\n--- b\u2028--- c", "# c\u2029a: b\n", "...\n...\na", "\xfe",
		"\xff", node("a") + "\n...\n" + node("b"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want, ok := countYAML(data)
		c := parse(string(data))
		if !ok || c.isBroken || strings.Contains(string(data), "{") || strings.Contains(string(data), "List") {
			return
		}
		p := &parser{reader: testReader(), name: "f", seen: map[key]bool{}}
		p.documents(t.Context(), []byte(strings.ReplaceAll(strings.TrimPrefix(string(data), "\ufeff"), "\r\n", "\n")))
		if p.units < want {
			t.Errorf("%d documents, a YAML parser finds %d in %q", p.units, want, data)
		}
	})
}
