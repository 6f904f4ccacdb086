package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listWith returns a List of Nodes in YAML, with indented items and additional text in the
// first one.
func listWith(indent, more string) string {
	var b strings.Builder
	b.WriteString("# a list\napiVersion: v1\nitems: # of Nodes\n")
	for _, name := range []string{"a", "b", "c"} {
		for i, line := range []string{"- apiVersion: v1", "  kind: Node", "  metadata:", "    name: " + name} {
			fmt.Fprintf(&b, "%s%s\n", indent, line)
			if i == 0 && name == "a" {
				b.WriteString(more)
			}
		}
	}
	b.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	return b.String()
}

// A list that is read in pieces has the same objects as one that is read as a whole, or it
// is refused.
func TestListInPieces(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		refused  bool
	}{
		{"as kubectl writes it", listWith("", ""), false},
		{"indented", listWith("  ", ""), false},
		{"with comments and empty lines", listWith("  ", "\n# c\n     # d\n\n"), false},
		{"with a block of text", listWith("", "  x: |\n   - apiVersion: v1\n\n     - y\n"), false},
		{"with a list", listWith("", "  x:\n  - 1\n  - - 2\n    - 3\n"), false},
		{"CR", strings.ReplaceAll(listWith("", ""), "\n", "\r"), false},
		{"a list of one kind", strings.ReplaceAll(strings.Replace(listWith("", ""), "kind: List", "kind: NodeList", 1), "- apiVersion: v1\n  kind: Node\n  ", "- "), false},
		{"an item that is broken", strings.Replace(listWith("", ""), "name: b", "name: [", 1), false},
		{"an item that is not an object", listWith("", "")[:len(listWith("", ""))-len("kind: List\nmetadata:\n  resourceVersion: \"\"\n")] + "- 7\n-\nkind: List\n", false},
		{"text in quotes over items", listWith("", "  x: \"\n- apiVersion: v1\n  y: \"\n"), true},
		{"a flow over items", listWith("", "  x: [\n- apiVersion: v1\n  ]\n"), false},
		{"an alias of another item", strings.Replace(listWith("", "  x: &x 1\n"), "name: c", "name: c\n  x: *x", 1), true},
		{"items twice", listWith("", "") + "items: []\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := reader{nodeName: "a", limits: DaemonLimits()}
			whole := r.parse("f", []byte(tc.in))
			r.limits.DocumentBytes = 150
			pieces := r.parse("f", []byte(tc.in))
			keys := func(c content) (objects []string) {
				for _, o := range c.objects {
					objects = append(objects, o.key.String())
				}
				return objects
			}
			if tc.refused {
				if len(pieces.objects) > 0 || !pieces.misses(key{}) {
					t.Errorf("the pieces have %v, %v", keys(pieces), pieces.all())
				}
				return
			}
			if d := cmp.Diff(keys(whole), keys(pieces)); d != "" {
				t.Errorf("objects (-whole +pieces):\n%s\n%v", d, pieces.all())
			}
			if whole.isBroken() != pieces.isBroken() {
				t.Errorf("problems of the whole %v, of the pieces %v", whole.all(), pieces.all())
			}
		})
	}
}

// The line number of an error in a piece is that in the file.
func TestLinesOfPieces(t *testing.T) {
	r := reader{limits: DaemonLimits()}
	r.limits.DocumentBytes = 150
	in := strings.Replace(listWith("", ""), "name: b", "name: b\n    name: d", 1)
	c := r.parse("f", []byte("---\n"+in))
	want := "f: document 1: item 2: Node d: name: repeated in line 13; the last value is used"
	if len(c.all()) != 1 || c.all()[0].String() != want {
		t.Errorf("problems %v, want %s", c.all(), want)
	}
}

// A large document is refused if it is not a list, or not in a form that can be divided.
func TestDocumentsThatCannotBeDivided(t *testing.T) {
	r := reader{limits: DaemonLimits()}
	r.limits.DocumentBytes = 100
	for name, in := range map[string]string{
		"no items":        "apiVersion: v1\nkind: ConfigMap\ndata:\n" + strings.Repeat("  a: b\n", 100),
		"not a list":      strings.Replace(listWith("", ""), "kind: List", "kind: Other", 1),
		"items in a flow": "apiVersion: v1\nkind: List\nitems: [" + strings.Repeat("1, ", 100) + "]\n",
		"no items in it":  "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("  a: b\n", 100),
	} {
		if c := r.parse("f", []byte(in)); len(c.objects) > 0 || !c.isBroken() || !strings.Contains(fmt.Sprint(c.all()), "100 bytes") {
			t.Errorf("%s: %d objects, problems %v", name, len(c.objects), c.all())
		}
	}
}

// FuzzPieces verifies that the pieces of a list have the same objects as the whole, or that
// they are refused.
func FuzzPieces(f *testing.F) {
	for _, more := range []string{"", "  x: \"\n- a\"\n", "  x: [\n- b\n", "# c\n", "  x: |\n    - a\n"} {
		f.Add(listWith("", more))
		f.Add(listWith("  ", more))
	}
	f.Fuzz(func(t *testing.T, in string) {
		d := document{line: 1, text: []byte(in)}
		if docs, n := split(d.text, 3); n != 1 || docs[0].isJSON {
			return
		}
		l, ok := d.cutList()
		if !ok {
			return
		}
		r := reader{nodeName: "a", limits: DaemonLimits(), tally: new(tally)}
		pieces := r.pieces(l)
		if pieces.isBroken() {
			return
		}
		whole := r.document(d)
		if d := cmp.Diff(len(whole.objects), len(pieces.objects)); d != "" || whole.isBroken() {
			t.Errorf("objects (-whole +pieces):\n%s\n%v\n%v\n%q", d, whole.all(), pieces.all(), in)
		}
		for i := range min(len(whole.objects), len(pieces.objects)) {
			if whole.objects[i].key != pieces.objects[i].key {
				t.Errorf("object %d is %v in the whole, %v in pieces", i, whole.objects[i].key, pieces.objects[i].key)
			}
		}
	})
}
