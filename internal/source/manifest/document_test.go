package manifest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A repeated key is reported with the object that it is in, and its last value is used.
func TestRepeatedYAMLKeys(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"in a list of the object", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: 10.0.0.1\n  ports:\n  - port: 1\n  - port: 80\n    port: 81\n", []string{
			"f: document 1: Service default/a: port: repeated in line 9; the last value is used",
		}},
		{"in the second document, at the top level", "# empty\n---\n" + web + "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\nkind: Node\n", []string{
			"f: document 2: Node n1: kind: repeated in line 14; the last value is used",
		}},
		{"three times, and one in the object", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nmetadata: {name: n1}\nmetadata: {name: n2, name: n3}\n", []string{
			"f: document 1: Node n3: metadata: repeated in line 4; the last value is used",
			"f: document 1: Node n3: name: repeated in line 5; the last value is used",
			"f: document 1: Node n3: metadata: repeated in line 5; the last value is used",
		}},
		{"in an item", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: p}\n  spec: {}\n  spec: {}\n", []string{
			"f: document 1: spec: repeated in line 9; the last value is used",
		}},
		{"in an item of a list of one kind", "apiVersion: v1\nkind: NodeList\nitems:\n- metadata: {name: n1}\n  spec: {}\n  spec: {}\n", []string{
			"f: document 1: Node n1: spec: repeated in line 6; the last value is used",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := reader{}.parse("f", []byte(tc.in))
			var got []string
			for _, p := range c.problems {
				got = append(got, p.String())
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
	c := reader{}.parse("f", []byte("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nmetadata: {name: n2}\n"))
	if !slices.ContainsFunc(c.objects, func(o *object) bool { return o.key.name.Name == "n2" }) {
		t.Errorf("objects %v: the last value is not used", c.objects)
	}
}

// The problem of a broken part says whether its last content stays in force.
func TestProblemsNameKeptContent(t *testing.T) {
	node := func(name string) string { return "---\napiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n" }
	broken := svc("a", "[1]")
	wrong := `f: document 1: line 1: Service default/a: spec.clusterIP: [1]: wrong type: expected a string`
	word := `f: document 2: line 5: "x": wrong type: expected an object`
	for _, tc := range []struct {
		name, last, in string
		want           []string
	}{
		{"an object", svc("a", "10.0.0.1") + node("n1"), broken, []string{wrong + "; its last content stays in force"}},
		{"an object that is new", node("n1"), broken, []string{wrong}},
		{"no object", node("n1") + node("m1"), node("n1") + "---\nx\n", []string{word + "; its last content stays in force"}},
		{"no object, but all others exist", node("n1"), node("n1") + "---\nx\n", []string{word}},
		{"both", node("n1"), broken + "---\nx\n", []string{wrong, strings.Replace(word, "line 5", "line 10", 1) + "; its last content stays in force"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := reader{}.parse("f", []byte(tc.in)).over(reader{}.parse("f", []byte(tc.last)))
			var got []string
			for _, f := range c.failures {
				got = append(got, f.problem.String())
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}
