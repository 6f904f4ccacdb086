package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
)

func newTestIndex() *index { return newIndex(cluster.NewStore(), source.NewReporter(nil)) }

// view has the Services of a Store as text. It is updated by taking changes.
type view map[string]string

// take updates the view and returns the names of the changed Services.
func (v view) take(store *cluster.Store) []string {
	var names []string
	for _, s := range store.Take().Services {
		names = append(names, s.Name.Name)
		delete(v, s.Name.Name)
		if s.Service == nil {
			continue
		}
		var eps []string
		for _, sl := range s.Slices {
			for _, ep := range sl.Endpoints {
				text := ep.Addr.String()
				for _, p := range sl.Ports {
					text += fmt.Sprintf(" %d", p.Port)
				}
				if !ep.Ready {
					text += " not ready"
				}
				eps = append(eps, text)
			}
		}
		slices.Sort(eps)
		v[s.Name.Name] = fmt.Sprint(s.Service.ClusterIPs, " ", strings.Join(eps, ", "))
	}
	return names
}

// fileSet is a set of files, which are written to an index one after the other.
type fileSet struct {
	t        *testing.T
	index    *index
	files    map[string]content
	view     view
	reported []string
	gone     map[string]bool
}

func newFileSet(t *testing.T) *fileSet {
	s := &fileSet{t: t, files: map[string]content{}, view: view{}}
	s.index = newIndex(cluster.NewStore(), source.NewReporter(func(ps []route.Problem) {
		for _, p := range ps {
			s.reported = append(s.reported, p.String())
		}
	}))
	return s
}

// write changes a file, and compares the Services in the Store afterwards.
func (s *fileSet) write(name, text string, want view) {
	s.t.Helper()
	old := s.files[name]
	now := reader{}.parseAgain(name, []byte(text), old).over(old)
	s.index.replace(rank{path: name}, old, now)
	s.index.reportDuplicates(func(path string) bool { return s.gone[path] })
	s.files[name] = now
	s.view.take(s.index.store)
	if d := cmp.Diff(want, s.view); d != "" {
		s.t.Errorf("after writing %s (-want +got):\n%s", name, d)
	}
}

const selecting = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

const pods = `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a, labels: {app: web}}
  spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
  status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: b, labels: {app: web}}
  spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
  status: {phase: Running, podIP: 10.0.0.2}
`

const endpoints = `
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 10.0.0.9}], ports: [{port: 9090}]}]
`

// EndpointSlices take precedence over Endpoints, and those over Pods. When one is
// deleted the next is used again.
func TestPrecedenceOfEndpoints(t *testing.T) {
	s := newFileSet(t)
	s.write("svc", selecting, view{"web": "[10.96.0.1] "})
	s.write("pods", pods, view{"web": "[10.96.0.1] 10.0.0.1 8080, 10.0.0.2 8080 not ready"})
	s.write("pods", strings.Replace(pods, "10.0.0.1,", "10.0.0.7,", 1), view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("eps", endpoints, view{"web": "[10.96.0.1] 10.0.0.9 9090"})
	s.write("slice", webSlice, view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("eps", "", view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("slice", "", view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("svc", strings.Replace(selecting, "app: web", "app: db", 1), view{"web": "[10.96.0.1] "})
	s.write("svc", selecting, view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("pods", "", view{"web": "[10.96.0.1] "})
	s.write("svc", "", view{})
	if n := len(s.index.store.SliceNames()); n != 0 {
		t.Errorf("%d slices are left", n)
	}
}

func TestASliceMovesToAnotherService(t *testing.T) {
	s := newFileSet(t)
	s.write("svc", selecting, view{"web": "[10.96.0.1] "})
	s.write("eps", endpoints, view{"web": "[10.96.0.1] 10.0.0.9 9090"})
	s.write("slice", webSlice, view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("slice", strings.Replace(webSlice, "service-name: web", "service-name: db", 1), view{"web": "[10.96.0.1] 10.0.0.9 9090"})
}

// If an object is in two files, the first by file name is used. The other is reported, and
// used when the first is deleted.
func TestObjectInTwoFiles(t *testing.T) {
	s := newFileSet(t)
	other := strings.Replace(web, "10.96.0.1", "10.96.0.2", 1)
	s.write("b", other, view{"web": "[10.96.0.2] "})
	s.write("a", web, view{"web": "[10.96.0.1] "})
	s.write("b", strings.Replace(web, "10.96.0.1", "10.96.0.3", 1), view{"web": "[10.96.0.1] "})
	s.write("a", "", view{"web": "[10.96.0.3] "})
	if d := cmp.Diff([]string{"b: Service default/web: also in a, which takes precedence"}, s.reported); d != "" {
		t.Errorf("reported (-want +got):\n%s", d)
	}
}

// While it is unknown whether a missing file comes back, its objects are not reported as
// duplicates.
func TestObjectInAMissingFile(t *testing.T) {
	s := newFileSet(t)
	s.write("a", web, view{"web": "[10.96.0.1] "})
	s.gone = map[string]bool{"a": true}
	s.write("c", web, view{"web": "[10.96.0.1] "})
	if len(s.reported) > 0 || len(s.index.duplicates) != 1 {
		t.Errorf("reported %q, duplicates %v", s.reported, s.index.duplicates)
	}
	s.gone = nil
	s.write("other", webSlice, view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	if d := cmp.Diff([]string{"c: Service default/web: also in a, which takes precedence"}, s.reported); d != "" {
		t.Errorf("reported after the file came back (-want +got):\n%s", d)
	}
	s.gone = map[string]bool{"a": true}
	s.write("a", "", view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	if len(s.reported) != 1 || len(s.index.duplicates) != 0 {
		t.Errorf("reported %q, duplicates %v", s.reported, s.index.duplicates)
	}
}

// A broken document keeps its last object; the others of the file are used.
func TestBrokenDocumentsKeepTheirObjects(t *testing.T) {
	db := strings.NewReplacer("web", "db", "10.96.0.1", "10.96.0.5").Replace(web)
	s := newFileSet(t)
	s.write("f", web+"---"+db, view{"web": "[10.96.0.1] ", "db": "[10.96.0.5] "})
	s.write("f", strings.Replace(web, "80", "x", 1)+"---"+strings.Replace(db, "10.96.0.5", "10.96.0.6", 1),
		view{"web": "[10.96.0.1] ", "db": "[10.96.0.6] "})
	s.write("f", strings.Replace(web, "80", "x", 1), view{"web": "[10.96.0.1] "}) // the broken object is known, so db was deleted
	s.write("f", web+"---"+db, view{"web": "[10.96.0.1] ", "db": "[10.96.0.5] "})
	s.write("f", strings.Replace(web, "10.96.0.1", "10.96.0.9", 1)+"---\nmetadata: [\n", view{"web": "[10.96.0.9] ", "db": "[10.96.0.5] "})
	s.write("f", "{{{", view{"web": "[10.96.0.9] ", "db": "[10.96.0.5] "})
	s.write("f", "# nothing\n", view{})
}

// A Service is never in the Store without the endpoints from the same file.
func TestServicesAreAddedLastAndRemovedFirst(t *testing.T) {
	x := newTestIndex()
	c := reader{}.parse("f", []byte(web+"---"+webSlice))
	changes := []change{}
	for _, o := range c.objects {
		changes = append(changes, change{key: o.key, new: o})
	}
	x.apply(changes)
	if st := x.store.Take().Services; len(st) != 1 || st[0].Service == nil || len(st[0].Slices) != 1 {
		t.Fatalf("the Store has %+v", st)
	}
}

// A change of a Pod touches only the Services that select it.
func TestAPodTouchesItsServicesOnly(t *testing.T) {
	s := newFileSet(t)
	var many strings.Builder
	for i := range 500 {
		fmt.Fprintf(&many, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {clusterIP: 10.1.%d.%d, selector: {app: s%d}, ports: [{port: 80}]}\n", i, i/250, 1+i%250, i)
	}
	c := reader{}.parse("many", []byte(many.String()))
	s.index.replace(rank{path: "many"}, content{}, c)
	s.index.store.Take()
	p := reader{}.parse("pods", []byte(strings.ReplaceAll(pods, "app: web", "app: s7")))
	s.index.replace(rank{path: "pods"}, content{}, p)
	if names := (view{}).take(s.index.store); !slices.Equal(names, []string{"s7"}) {
		t.Errorf("touched %v, want only s7", names)
	}
}
