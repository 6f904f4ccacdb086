package files

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// testReader reads files as a daemon on the Node n1 does.
func testReader() reader {
	return reader{convert: convert.Converter{Strings: convert.NewInterner()}, nodeName: "n1", limits: DaemonLimits()}
}

// parse parses a file with the name f.
func parse(text string) content { return testReader().parse(context.Background(), "f", []byte(text)) }

// problemsOf returns the problems of a file as text.
func problemsOf(c content) (out []string) {
	for _, p := range c.report("f") {
		out = append(out, p.String())
	}
	return out
}

// objectsOf returns the names of the objects of a file.
func objectsOf(c content) (out []string) {
	for _, o := range c.objects {
		out = append(out, o.key.String())
	}
	return out
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
		broken   bool
		problems []string
	}{
		{
			name: "namespace default", in: web + "---" + webSlice,
			objects: []string{"Service default/web", "EndpointSlice default/web-1"},
		},
		{
			name: "JSON",
			in: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"x"},` +
				`"spec":{"clusterIP":"10.0.0.1"}}`,
			objects: []string{"Service x/a"},
		},
		{name: "a list of anything", in: `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}
- {apiVersion: v1, kind: Pod, metadata: {name: p}, status: {phase: Running, podIP: 10.1.0.1}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
- apiVersion: v1
  kind: Service
  metadata: {name: b}
  spec:
    clusterIP: [1]
    ports: [{port: x}]
`, objects: []string{"Service default/a", "Pod default/p"}, broken: true, problems: []string{
			"f: line 12: Service default/b: spec.clusterIP: [1]: wrong type: expected a string",
			"f: line 13: Service default/b: spec.ports[0].port: \"x\": wrong type: expected a whole number that fits int32",
		}},
		{
			name: "a list of one kind",
			in: `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a"},` +
				`"spec":{"clusterIP":"10.0.0.1"}}]}`,
			objects: []string{"Service default/a"},
		},
		{name: "a list of slices", in: "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: []\n"},
		{
			name: "a list in a list",
			in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"NodeList",` +
				`"items":[{"metadata":{"name":"a"}}]}]}`, objects: []string{"Node a"},
		},
		{
			name: "items that are not a list", in: "apiVersion: v1\nkind: List\nitems: 5\n", broken: true,
			problems: []string{"f: line 3: List: items: 5: wrong type: expected a list"},
		},
		{
			name: "an item that is nothing", in: "apiVersion: v1\nkind: List\nitems:\n- null\n", broken: true,
			problems: []string{"f: line 4: kind: not a Kubernetes object: it needs an apiVersion and a kind"},
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
			problems: []string{
				"f: line 1: EndpointSlice x: apiVersion: discovery.k8s.io/v1beta1: this version is not read; " +
					"expected discovery.k8s.io/v1",
			},
		},
		{
			name: "all Nodes",
			in: "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: " +
				"n2}\n",
			objects: []string{"Node n1", "Node n2"},
		},
		{
			name: "unknown field", in: web + "  colour: red\n", objects: []string{"Service default/web"},
			problems: []string{"f: line 8: Service default/web: spec.colour: unknown field, ignored"},
		},
		{
			name: "key twice", in: "# c\n---\n" + web + "  clusterIP: 10.96.0.2\n", broken: true,
			problems: []string{`f: yaml: unmarshal errors: line 10: key "clusterIP" already set in map`},
		},
		{
			name: "key twice in JSON", broken: true,
			in: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},` + "\n" +
				`"spec":{"ports":[{},{"port":1,"p\u006frt":2}]}}`,
			problems: []string{"f: line 2: Service default/a: spec.ports[1].port: the field is repeated"},
		},
		{
			name: "kind twice in JSON", in: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"kind":"Pod"}`,
			broken:   true,
			problems: []string{"f: line 1: kind: the field is repeated"},
		},
		{
			name: "object twice", in: web + "---" + web, objects: []string{"Service default/web"},
			problems: []string{"f: line 9: Service default/web: the file has this object twice; the first one counts"},
		},
		{
			name: "object twice in a list",
			in: `{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}},` + "\n" +
				`{"metadata":{"name":"a"}}]}`,
			objects:  []string{"Node a", "Node b"},
			problems: []string{"f: line 2: Node a: the file has this object twice; the first one counts"},
		},
		{
			name: "not an object", in: "replicas: 3\n", broken: true,
			problems: []string{"f: line 1: kind: not a Kubernetes object: it needs an apiVersion and a kind"},
		},
		{
			name: "a word", in: "hello\n", broken: true,
			problems: []string{"f: line 1: \"hello\": wrong type: expected an object"},
		},
		{
			name: "no apiVersion", in: "kind: Service\n", broken: true,
			problems: []string{"f: line 1: Service: apiVersion: not a Kubernetes object: it needs an apiVersion and a kind"},
		},
		{
			name: "no name", in: "apiVersion: v1\nkind: Service\n", broken: true,
			problems: []string{"f: line 1: Service: metadata.name: an object needs a name"},
		},
		{
			name: "an error in YAML has the line in the file", in: web + "---\nkind: Service\n a: [\n",
			objects: []string{"Service default/web"}, broken: true,
			problems: []string{"f: yaml: line 10: mapping values are not allowed in this context"},
		},
		{
			name: "half a JSON list", in: `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1",`, broken: true,
			problems: []string{"f: line 1: unexpected EOF"},
		},
		{
			name: "half of the second JSON value", in: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}} {"kind":`,
			broken:   true,
			problems: []string{"f: line 1: unexpected EOF"},
		},
		{
			name: "problems of a conversion", in: strings.Replace(web, "10.96.0.1", "", 1),
			objects: []string{"Service default/web"},
			problems: []string{
				"f: line 6: Service default/web: spec.clusterIP: the Service has no usable clusterIP and is not programmed",
			},
		},
		{
			name: "type error deep inside", in: strings.Replace(web, "80", "http", 1), broken: true,
			problems: []string{
				"f: line 7: Service default/web: spec.ports[0].port: \"http\": wrong type: expected a whole number that fits int32",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := parse(tc.in)
			for what, d := range map[string]string{
				"objects": cmp.Diff(tc.objects, objectsOf(got)), "problems": cmp.Diff(tc.problems, problemsOf(got)),
			} {
				if d != "" {
					t.Errorf("%s (-want +got):\n%s", what, d)
				}
			}
			if got.isBroken != tc.broken {
				t.Errorf("broken: %v, want %v", got.isBroken, tc.broken)
			}
		})
	}
}

// The problem of a value names the expected type.
func TestExpected(t *testing.T) {
	for in, want := range map[string]string{
		"spec: {ports: [{port: 99999999999}]}": "spec.ports[0].port: 99999999999: wrong type: " +
			"expected a whole number that fits int32",
		"spec: {ports: {port: 80}}":             `spec.ports: {"port":80}: wrong type: expected a list`,
		"spec: {selector: {a.b/c: x, on: yes}}": "spec.selector.true: true: wrong type: expected a string",
		"spec: {selector: {a.b/c: x, q: 1}}":    "spec.selector.q: 1: wrong type: expected a string",
		"spec: {allocateLoadBalancerNodePorts: 'no'}": `spec.allocateLoadBalancerNodePorts: "no": wrong type: ` +
			`expected true or false`,
		"spec: {ports: [{targetPort: [1]}]}": "spec.ports[0].targetPort: [1]: wrong type: " +
			"expected a whole number that fits int32, or a string",
		"spec: 7": "spec: 7: wrong type: expected an object",
		"spec: {type: [" + strings.Repeat("x", 100) + "]}": `spec.type: ["` + strings.Repeat("x", 62) +
			"...: wrong type: expected a string",
	} {
		got := problemsOf(parse("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n" + in))
		if d := cmp.Diff([]string{"f: line 4: Service default/a: " + want}, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", in, d)
		}
	}
	got := problemsOf(parse("apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  deletionTimestamp: x\n"))
	want := `f: line 5: Service default/a: metadata.deletionTimestamp: "x": wrong type: ` +
		`expected a time like 2006-01-02T15:04:05Z`
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzManifest(f *testing.F) {
	for _, s := range []string{
		web, webSlice, web + "---" + webSlice, "{}", "[]", "null", "---\n...\n", "a: &a [*a]\n",
		"? {a: b}\n: c\n", "\xef\xbb\xbf{", "<<: 1\n",
		"apiVersion: v1\nkind: List\nitems: [null, 1, {kind: Pod, apiVersion: v1, metadata: {name: p}}]\n",
		`{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"web"},"subsets":[{"addresses":[{"ip":"10.0.0.1"}],` +
			`"ports":[{"port":80}]}]}`,
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/12, x]}\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRs: [10.1.0.0/24]}\nstatus: {addresses: [{type: " +
			"InternalIP, address: 10.0.0.1}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: web}, deletionTimestamp: x}\nstatus: {podIPs: [{ip: " +
			"10.0.0.1}]}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: w}\nspec: {selector: {app: web}, clusterIPs: [10.0.0.1, \"::1\"], " +
			"ports: [{port: 99999999999}]}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := testReader()
		r.convert.AllowExternalIPs = true
		whole := r.parse(t.Context(), "f", data)
		store := cluster.NewStore()
		objects, _ := merge([]*file{{objects: whole.objects}})
		apply(store, state{}, stateOf(objects, "n1"))
		apply(store, stateOf(objects, "n1"), state{})
		if n, m := len(store.ServiceNames()), len(store.SliceNames()); n+m > 0 {
			t.Errorf("%d services, %d slices are left", n, m)
		}
	})
}
