package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-proxy/sluice/internal/cluster"
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

// No document of a file is lost, whatever its encoding and separators are: each is read or
// reported.
func TestNoDocumentIsLost(t *testing.T) {
	two := node("a") + "\n---\n" + node("b") + "\n"
	both := []string{"Node a", "Node b"}
	for _, tc := range []struct {
		name, in string
		objects  []string
		problems []string
	}{
		{"UTF-8", two, both, nil},
		{"UTF-8 with a byte order mark", "\ufeff" + two, both, nil},
		{"UTF-16 LE", inUTF16(two, binary.LittleEndian), both, nil},
		{"UTF-16 BE", inUTF16(two, binary.BigEndian), both, nil},
		{"UTF-16 with a surrogate pair", inUTF16("# \U0001f600\n"+two, binary.LittleEndian), both, nil},
		{"UTF-16 without a byte order mark", inUTF16(two, binary.LittleEndian)[2:], nil, []string{
			"f: the text is in UTF-16 or UTF-32 without a byte order mark, or is no text; save it in UTF-8",
		}},
		{"half a UTF-16 character", inUTF16(two, binary.BigEndian) + "\x00", nil, []string{
			"f: the text in UTF-16 ends in the middle of a character",
		}},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", nil, []string{"f: the text is in UTF-32, which is not read; save it in UTF-8"}},
		{"Latin-1 in a comment", "\n# gr\xfc\xdfe\n" + two, both, []string{
			"f: line 2: the text is not in UTF-8; each invalid part is read as U+FFFD",
		}},
		{"CR", strings.ReplaceAll(two, "\n", "\r"), both, nil},
		{"CR LF", strings.ReplaceAll(two, "\n", "\r\n"), both, nil},
		{"NEL", strings.ReplaceAll(two, "\n", "\u0085"), both, nil},
		{"line separators", strings.ReplaceAll(two, "\n", "\u2028"), both, nil},
		{"paragraph separators", strings.ReplaceAll(two, "\n", "\u2029"), both, nil},
		{"a line separator before the dashes", node("a") + "\u2028---\n" + node("b"), both, nil},
		{"a comment that ends at a line separator", "# c\u2028" + node("a"), both[:1], nil},
		{"dots", node("a") + "\n...\n" + node("b") + "\n...\n", both, nil},
		{"dots and dashes", node("a") + "\n...\n---\n" + node("b") + "\n... # end\n", both, nil},
		{"dots and a comment", node("a") + "\n... # end\n# why\n" + node("b"), both, nil},
		{"dots and text", node("a") + "\n... b\n---\n" + node("b"), both, []string{
			`f: document 2: line 4: "b": wrong type: expected an object`,
		}},
		{"dashes and a comment", "--- # one\n" + node("a") + "\n--- # two\n" + node("b"), both, nil},
		{"dashes and a tag", "--- !!map\n" + node("a") + "\n--- !own\n" + node("b"), both, nil},
		{"dashes and a tab", "---\t\n" + node("a") + "\n---\t# c\n" + node("b"), both, nil},
		{"dashes and content", "--- " + jsonNode("a") + "\n--- {apiVersion: v1, kind: Node, metadata: {name: b}}\n", both, nil},
		{"directives", "%YAML 1.1\n---\n" + node("a") + "\n...\n# c\n%YAML 1.1\n%TAG !x! tag:x,1:\n---\n" + node("b"), both, nil},
		{"a byte order mark before each document", "\ufeff" + node("a") + "\n---\n\ufeff" + node("b"), both, nil},
		{"a byte order mark before the dashes", "\ufeff" + node("a") + "\n\ufeff---\n" + node("b"), both, nil},
		{"empty documents", "---\n---\n# c\n---\n" + node("a") + "\n---\nnull\n---\n~\n---\n" + node("b") + "\n---\n", both, nil},
		{"JSON in a row", jsonNode("a") + jsonNode("b"), both, nil},
		{"JSON in lines", jsonNode("a") + "\r" + jsonNode("b") + "\u2028", both, nil},
		{"JSON between dashes", "---\n" + jsonNode("a") + "\n---\n" + jsonNode("b") + "\n---\n", both, nil},
		{"JSON between dashes with comments", "# c\n" + jsonNode("a") + "\n--- # c\n# c\n" + jsonNode("b") + "\n...\n", both, nil},
		{"JSON and a comment", jsonNode("a") + " # c\n---\n" + jsonNode("b") + "\n# c\n", both, nil},
		{"JSON, then YAML", jsonNode("a") + "\n---\n" + node("b"), both, nil},
		{"YAML, then JSON", node("a") + "\n---\n" + jsonNode("b"), both, nil},
		{"JSON with dashes in a string", `{"apiVersion":"v1","kind":"Node","metadata":{"annotations":{"x":"` + "\u2028---\u2028" + `"},"name":"a"}}` + "\n---\n" + node("b"), both, nil},
		{"JSON and dashes in its line", jsonNode("a") + " ---\n" + node("b"), nil, []string{
			"f: document 1: read YAML: in or after line 1: yaml: did not find expected <document start>",
		}},
		{"a broken document between good ones", jsonNode("a") + "\n---\n{\"x\": 1,\n\n}}\n---\n" + node("b"), both, []string{
			"f: document 2: read JSON: line 5: invalid character '}' looking for beginning of object key string",
		}},
		{"a JSON flow over the dashes", `{"apiVersion":` + "\n---\n" + node("b"), both[1:], []string{
			"f: document 1: read JSON: line 2: invalid character '-' in numeric literal",
		}},
		{"a text in quotes over the dashes", "a: \"b\n---\n\"\n---\n" + node("b"), both[1:], nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := reader{nodeName: "a"}.parse("f", []byte(tc.in))
			var objects, problems []string
			for _, o := range c.objects {
				objects = append(objects, o.key.String())
			}
			for _, p := range c.all() {
				problems = append(problems, p.String())
			}
			if d := cmp.Diff(tc.objects, objects); d != "" {
				t.Errorf("objects (-want +got):\n%s", d)
			}
			if tc.name == "a text in quotes over the dashes" {
				if len(problems) != 2 {
					t.Errorf("problems %q", problems)
				}
				return
			}
			if d := cmp.Diff(tc.problems, problems); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

// countYAML returns the number of documents other than null that a YAML parser finds, and
// false for an error.
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

// The documents of a file are those that a YAML parser finds in the whole text, and each
// part of the file has at most one.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"a: 1\n---\nb: 2\n...\n", "%YAML 1.1\n---\na\n", "--- |\n ---\n...\n", "a\r---\rb", "{\"a\":1}\n---\n{\"b\":2}", "\ufeff---\n\ufeffa: 1\n",
		"--- # c\n--- !!str x\n", "a: \"x\n---\n\"", "- a\n... # c\n...\n--- b\u2028--- c", "{\"a\":1}{\"b\":2} {c: d}\n", "# c\u2029a: b\n", "...\n...\na", "\xfe", "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, _, err := toUTF8(data)
		if err != nil {
			return
		}
		c := cutter{text: text, line: 1}
		line := 1
		for len(c.text) > 0 {
			before := c.text
			d := c.next()
			if len(c.text) >= len(before) {
				t.Fatalf("no progress at %q", before)
			}
			piece := before[:len(before)-len(c.text)]
			if line += countLines(piece); line != c.line {
				t.Fatalf("line %d at %q, want %d", c.line, c.text, line)
			}
			if n, ok := countYAML(d.text); ok && n > 1 {
				t.Errorf("%d documents in one: %q", n, d.text)
			}
			if rest := strings.Replace(string(piece), string(d.text), "", 1); hasContent([]byte(rest)) && !strings.HasPrefix(rest, "---") {
				t.Errorf("%q is not part of a document", rest)
			}
		}
		want, ok := countYAML(text)
		if !ok || strings.Contains(string(text), byteOrderMark) { // the parser treats a mark as text
			return
		}
		got := 0
		docs, _ := split(text, len(text))
		for _, d := range docs {
			n, ok := countYAML(d.text)
			if !ok && !d.isJSON {
				t.Errorf("document %d of %d is not valid by itself: %q", d.number, len(docs), d.text)
			}
			if d.isJSON {
				n = 1
			}
			got += n
		}
		if got != want {
			t.Errorf("%d documents, a YAML parser finds %d in %q", got, want, text)
		}
	})
}

// Documents over the limit are counted, and none is kept.
func TestSplitCountsOverTheLimit(t *testing.T) {
	docs, total := split([]byte(strings.Repeat("---\na\n", 1000)), 999)
	if len(docs) != 0 || total != 1000 {
		t.Errorf("%d documents of %d", len(docs), total)
	}
}

// A repeated key in JSON is reported, and only its last value is used.
func TestRepeatedJSONKeys(t *testing.T) {
	object := func(spec string) string {
		return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},` + "\n" + spec + "}"
	}
	for _, tc := range []struct {
		name, in string
		want     []string
		ip       string
	}{
		{"a value", object(`"spec":{"clusterIP":"10.0.0.1","clusterIP":"10.0.0.2"}`), []string{
			"f: document 1: Service default/a: spec.clusterIP: repeated; the last value is used",
		}, "10.0.0.2"},
		{"escaped", object(`"spec":{"clusterIP":"10.0.0.1",` + "\n" + `"cluster\u0049P":"10.0.0.2"}`), []string{
			"f: document 1: Service default/a: spec.clusterIP: repeated; the last value is used",
		}, "10.0.0.2"},
		{"an object is replaced, not merged", object(`"spec":{"clusterIP":"10.0.0.1","type":"NodePort"},"spec":{"clusterIP":"10.0.0.2"}`), []string{
			"f: document 1: Service default/a: spec: repeated; the last value is used",
		}, "10.0.0.2"},
		{"in a list of the object", object(`"spec":{"clusterIP":"10.0.0.2","ports":[{"port":1},{"port":1,"port":2}]}`), []string{
			"f: document 1: Service default/a: spec.ports[1].port: repeated; the last value is used",
		}, "10.0.0.2"},
		{"the items of a list", `{"apiVersion":"v1","kind":"List","items":[` + jsonNode("x") + `],"items":[` + object(`"spec":{"clusterIP":"10.0.0.2"}`) + `]}`, []string{
			"f: document 1: List: items: repeated; the last value is used",
		}, "10.0.0.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := reader{}.parse("f", []byte(tc.in))
			var got []string
			for _, p := range c.all() {
				if strings.Contains(p.Reason, "repeated") {
					got = append(got, p.String())
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if len(c.objects) != 1 {
				t.Fatalf("%d objects: %v", len(c.objects), c.all())
			}
			svc, _ := valueOf[service](c.objects[0])
			if got := fmt.Sprint(svc.ClusterIPs); got != "["+tc.ip+"]" {
				t.Errorf("clusterIPs %s, want %s", got, tc.ip)
			}
			if svc.Type != cluster.ClusterIP {
				t.Errorf("the type is %v, that of the first spec", svc.Type)
			}
		})
	}
}
