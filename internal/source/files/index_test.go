package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

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

// fileSet is a set of files in a folder, which a Source reads.
type fileSet struct {
	*steppedSource

	dir string
}

func newFileSet(t *testing.T) *fileSet {
	dir := t.TempDir()
	return &fileSet{loaded(t, dir), dir}
}

// write changes a file, and compares the Services in the Store afterwards.
func (s *fileSet) write(name, text string, want view) {
	s.t.Helper()
	path := filepath.Join(s.dir, name+".yaml")
	if text == "" {
		must(s.t, os.Remove(path))
	} else {
		write(s.t, path+"~", text)
		must(s.t, os.Rename(path+"~", path))
	}
	s.settled(want)
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

// EndpointSlices take precedence over Endpoints, and those over Pods. When one is deleted the next is used again.
func TestPrecedenceOfEndpoints(t *testing.T) {
	s := newFileSet(t)
	s.write("svc", selecting, view{"web": "[10.96.0.1] "})
	s.write("pods", pods, view{"web": "[10.96.0.1] 10.0.0.1 8080, 10.0.0.2 8080 not ready"})
	s.write("pods", strings.Replace(pods, "10.0.0.1,", "10.0.0.7,", 1),
		view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("eps", endpoints, view{"web": "[10.96.0.1] 10.0.0.9 9090"})
	s.write("slice", webSlice, view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("eps", "", view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("slice", "", view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("svc", strings.Replace(selecting, "app: web", "app: db", 1), view{"web": "[10.96.0.1] "})
	s.write("svc", selecting, view{"web": "[10.96.0.1] 10.0.0.2 8080 not ready, 10.0.0.7 8080"})
	s.write("pods", "", view{"web": "[10.96.0.1] "})
	s.write("svc", "", view{})
	if n := len(s.store.SliceNames()); n != 0 {
		t.Errorf("%d slices are left", n)
	}
}

func TestASliceMovesToAnotherService(t *testing.T) {
	s := newFileSet(t)
	s.write("svc", selecting, view{"web": "[10.96.0.1] "})
	s.write("eps", endpoints, view{"web": "[10.96.0.1] 10.0.0.9 9090"})
	s.write("slice", webSlice, view{"web": "[10.96.0.1] 10.0.0.1 8080"})
	s.write("slice", strings.Replace(webSlice, "service-name: web", "service-name: db", 1),
		view{"web": "[10.96.0.1] 10.0.0.9 9090"})
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
	want := []string{
		s.dir + ": has no manifests: expected files *.yaml, *.yml or *.json; folders in it are not read",
		filepath.Join(s.dir, "b.yaml") + ": Service default/web: also in " +
			filepath.Join(s.dir, "a.yaml") + ", which takes precedence",
	}
	if d := cmp.Diff(want, s.reported.all()); d != "" {
		t.Errorf("reported (-want +got):\n%s", d)
	}
}

// A file that cannot be read whole keeps its last content whole, and does not stop others.
func TestBrokenFilesKeepTheirObjects(t *testing.T) {
	db := strings.NewReplacer("web", "db", "10.96.0.1", "10.96.0.5").Replace(web)
	s := newFileSet(t)
	both := view{"web": "[10.96.0.1] ", "db": "[10.96.0.5] "}
	s.write("f", web+"---"+db, both)
	for _, broken := range []string{
		strings.Replace(web, "80", "x", 1) + "---" + strings.Replace(db, "10.96.0.5", "10.96.0.6", 1),
		strings.Replace(web, "80", "x", 1),
		strings.Replace(web, "10.96.0.1", "10.96.0.9", 1) + "---\nmetadata: [\n",
		"{{{", " \n",
	} {
		s.write("f", broken, both)
	}
	s.reported.wait(t, "; the file cannot be read whole: its last content stays in force")
	s.write("g", strings.NewReplacer("web", "other", "10.96.0.1", "10.96.0.8").Replace(web),
		view{"web": "[10.96.0.1] ", "db": "[10.96.0.5] ", "other": "[10.96.0.8] "})
	s.write("f", "# nothing\n", view{"other": "[10.96.0.8] "})
}

func stateOfText(text string) state {
	objects, _ := merge([]*file{{objects: parse(text).objects}})
	return stateOf(objects, "n1")
}

// A Service is never in the Store without the endpoints from the same file.
func TestServicesAreAddedLast(t *testing.T) {
	store := cluster.NewStore()
	go apply(store, state{}, stateOfText(web+"---"+webSlice))
	<-store.Changed()
	if st := store.Take().Services; len(st) != 1 || len(st[0].Slices) != 1 {
		t.Fatalf("the Store has %+v", st)
	}
}

// A change of a Pod touches only the Services that select it.
func TestAPodTouchesItsServicesOnly(t *testing.T) {
	var many strings.Builder
	for i := range 500 {
		fmt.Fprintf(&many,
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {clusterIP: 10.1.%d.%d, selector: {app: s%d}, "+
				"ports: [{port: 80}]}\n", i, i/250, 1+i%250, i)
	}
	store := cluster.NewStore()
	before := stateOfText(many.String())
	after := stateOfText(many.String() + "---" + strings.ReplaceAll(pods, "app: web", "app: s7"))
	apply(store, state{}, before)
	store.Take()
	apply(store, before, after)
	if names := (view{}).take(store); !slices.Equal(names, []string{"s7"}) {
		t.Errorf("touched %v, want only s7", names)
	}
}
