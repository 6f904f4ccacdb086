package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/source/convert"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string // number@line: text
	}{
		{"nothing", "", nil},
		{"one", "a: 1\n", []string{"1@1: a: 1"}},
		{"separators without content between them", "---\n# why\n---\na: 1\n---\n", []string{"1@3: ---\na: 1"}},
		{"two", "a: 1\n---\nb: 2", []string{"1@1: a: 1", "2@2: ---\nb: 2"}},
		{"Windows line ends", "a: 1\r\n---\r\nb: 2\r\n", []string{"1@1: a: 1", "2@2: ---\r\nb: 2"}},
		{"text behind the dashes", "--- # first\na: 1\n--- {b: 2}\n", []string{"1@1: --- # first\na: 1", "2@3: --- {b: 2}"}},
		{"dashes inside", "a: |\n  ---\n  x\nb: ----\n", []string{"1@1: a: |\n  ---\n  x\nb: ----"}},
		{"end marks", "a: 1\n...\n---\nb: 2\n...\n", []string{"1@1: a: 1\n...", "2@3: ---\nb: 2\n..."}},
		{"byte order mark", "\ufeffa: 1", []string{"1@1: a: 1"}},
		{"JSON values in a row", "{\"a\":1}\n{\"b\":2}", []string{`1@1: {"a":1}`, `2@2: {"b":2}`}},
		{"a YAML flow", "{a: 1}", []string{"1@1: {a: 1}"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			text, _, err := toUTF8([]byte(tc.in))
			must(t, err)
			docs, _ := split(text, 100)
			for _, d := range docs {
				got = append(got, fmt.Sprintf("%d@%d: %s", d.number, d.line, strings.TrimSpace(string(d.text))))
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("documents (-want +got):\n%s", d)
			}
		})
	}
}

const web = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  ports: [{port: 80}]
`

const webSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]
`

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		objects  []string
		broken   []string
		lost     bool
		problems []string
	}{
		{name: "namespace default", in: web + "---" + webSlice, objects: []string{"Service default/web", "EndpointSlice default/web-1"}},
		{
			name: "JSON", in: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"x"},"spec":{"clusterIP":"10.0.0.1"}}`,
			objects: []string{"Service x/a"},
		},
		{name: "a list of anything", in: `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}
- {apiVersion: v1, kind: Pod, metadata: {name: p}, status: {phase: Running, podIP: 10.1.0.1}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
- {apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: [1]}}
`, objects: []string{"Service default/a", "Pod default/p"}, broken: []string{"Service default/b"}, problems: []string{
			"f.yaml: document 1: line 1: item 4: Service default/b: spec.clusterIP: [1]: wrong type: expected a string",
		}},
		{
			name: "a list of one kind", in: `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a"},"spec":{"clusterIP":"10.0.0.1"}}]}`,
			objects: []string{"Service default/a"},
		},
		{name: "a list of slices", in: "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: []\n"},
		{
			name: "items that are not a list", in: "apiVersion: v1\nkind: List\nitems: 5\n", lost: true,
			problems: []string{"f.yaml: document 1: line 1: List: items: 5: wrong type: expected a list"},
		},
		{name: "other kinds and groups", in: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: 7
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: web}
---
apiVersion: v1
kind: ConfigMapList
items: 9
`},
		{
			name: "other version", in: "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: x}\n",
			problems: []string{"f.yaml: document 1: EndpointSlice x: apiVersion: discovery.k8s.io/v1beta1: this version is not read; expected discovery.k8s.io/v1"},
		},
		{
			name: "own Node only", in: "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\nspec: 1\n",
			objects: []string{"Node n1", "Node n2"},
		},
		{
			name: "unknown field", in: web + "  colour: red\n", objects: []string{"Service default/web"},
			problems: []string{"f.yaml: document 1: Service default/web: spec.colour: unknown field, ignored"},
		},
		{
			name: "key twice", in: web + "  clusterIP: 10.96.0.2\n", objects: []string{"Service default/web"},
			problems: []string{"f.yaml: document 1: Service default/web: clusterIP: repeated in line 8; the last value is used"},
		},
		{
			name: "object twice", in: web + "---" + web, objects: []string{"Service default/web"},
			problems: []string{"f.yaml: document 2: Service default/web: also in document 1, which takes precedence"},
		},
		{
			name: "object twice in a list", in: `{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}},{"metadata":{"name":"a"}}]}`,
			objects:  []string{"Node a", "Node b"},
			problems: []string{"f.yaml: document 1: item 3: Node a: also in item 1, which takes precedence"},
		},
		{
			name: "not an object", in: "replicas: 3\n", lost: true,
			problems: []string{"f.yaml: document 1: line 1: kind: not a Kubernetes object: it needs an apiVersion and a kind"},
		},
		{
			name: "a word", in: "hello\n", lost: true,
			problems: []string{"f.yaml: document 1: line 1: \"hello\": wrong type: expected an object"},
		},
		{
			name: "no apiVersion", in: "kind: Service\n", lost: true,
			problems: []string{"f.yaml: document 1: line 1: apiVersion: not a Kubernetes object: it needs an apiVersion and a kind"},
		},
		{
			name: "no name", in: "apiVersion: v1\nkind: Service\n", lost: true,
			problems: []string{"f.yaml: document 1: line 1: Service: metadata.name: an object needs a name"},
		},
		{
			name: "an error in YAML has the line in the file", in: web + "---\nkind: Service\n a: [\n", objects: []string{"Service default/web"}, lost: true,
			problems: []string{"f.yaml: document 2: read YAML: yaml: line 10: mapping values are not allowed in this context"},
		},
		{
			name: "half a JSON list", in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1",`, lost: true,
			problems: []string{"f.yaml: document 1: read JSON: line 1: the text ends in the middle of a value"},
		},
		{
			name: "half of the second JSON value", in: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}} {"kind":`, objects: []string{"Node n1"}, lost: true,
			problems: []string{"f.yaml: document 2: read JSON: line 1: the text ends in the middle of a value"},
		},
		{
			name: "problems of a conversion", in: strings.Replace(web, "10.96.0.1", "", 1), objects: []string{"Service default/web"},
			problems: []string{"f.yaml: document 1: Service default/web: spec.clusterIP: the Service has no usable clusterIP and is not programmed"},
		},
		{
			name: "type error deep inside", in: strings.Replace(web, "80", "http", 1), broken: []string{"Service default/web"},
			problems: []string{"f.yaml: document 1: line 1: Service default/web: spec.ports[0].port: \"http\": wrong type: expected a whole number that fits int32"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := reader{convert: convert.Converter{}, nodeName: "n1"}
			got := r.parse("f.yaml", []byte(tc.in))
			var objects, broken, problems []string
			for _, o := range got.objects {
				objects = append(objects, o.key.String())
			}
			lost := false
			for _, f := range got.failures {
				if f.key == (key{}) {
					lost = true
				} else {
					broken = append(broken, f.key.String())
				}
			}
			for _, p := range got.all() {
				problems = append(problems, p.String())
			}
			for what, d := range map[string]string{
				"objects": cmp.Diff(tc.objects, objects), "broken": cmp.Diff(tc.broken, broken), "problems": cmp.Diff(tc.problems, problems),
			} {
				if d != "" {
					t.Errorf("%s (-want +got):\n%s", what, d)
				}
			}
			if lost != tc.lost {
				t.Errorf("a failure without a key: %v, want %v", lost, tc.lost)
			}
		})
	}
}

// Documents that are read in parallel keep their order.
func TestParseManyDocuments(t *testing.T) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {clusterIP: 10.0.%d.%d}\n", i, i/250, 1+i%250)
	}
	got := reader{}.parse("f", []byte(text.String()))
	if len(got.objects) != 1000 || len(got.all()) != 0 {
		t.Fatalf("%d objects, problems %v", len(got.objects), got.all())
	}
	for i, o := range got.objects {
		if want := fmt.Sprintf("s%d", i); o.key.name.Name != want {
			t.Fatalf("object %d is %v, want %s", i, o.key, want)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, s := range []string{
		web, webSlice, web + "---" + webSlice, "{}", "[]", "null", "---\n...\n", "a: &a [*a]\n", "? {a: b}\n: c\n", "\xef\xbb\xbf{", "<<: 1\n",
		"apiVersion: v1\nkind: List\nitems: [null, 1, {kind: Pod, apiVersion: v1, metadata: {name: p}}]\n",
		`{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"web"},"subsets":[{"addresses":[{"ip":"10.0.0.1"}],"ports":[{"port":80}]}]}`,
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/12, x]}\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRs: [10.1.0.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 10.0.0.1}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: web}, deletionTimestamp: x}\nstatus: {podIPs: [{ip: 10.0.0.1}]}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: w}\nspec: {selector: {app: web}, clusterIPs: [10.0.0.1, \"::1\"], ports: [{port: 99999999999}]}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reader{convert: convert.Converter{AllowExternalIPs: true, Strings: convert.NewInterner()}, nodeName: "n1"}
		whole := r.parse("f", data)
		half := r.parse("f", data[:len(data)/2])
		kept := half.over(whole)
		if half.misses(key{kind: "any"}) && kept.drops(whole) {
			t.Errorf("a half-written file deletes objects")
		}
		x := newTestIndex()
		x.replace(rank{}, content{}, whole)
		x.replace(rank{}, whole, kept)
		x.replace(rank{}, kept, content{})
		if n, m := len(x.store.ServiceNames()), len(x.store.SliceNames()); n+m+len(x.claims)+len(x.backends.services)+len(x.backends.pods)+len(x.backends.selects) > 0 {
			t.Errorf("%d services, %d slices are left, index %+v", n, m, x.backends)
		}
	})
}
