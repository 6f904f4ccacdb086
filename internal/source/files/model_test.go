package files

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// randomDocument returns one of a few objects, so that random files contain the same ones,
// change them and duplicate them.
func randomDocument(r *rand.Rand) string {
	name, n := fmt.Sprintf("s%d", r.IntN(3)), 1+r.IntN(3)
	switch r.IntN(8) {
	case 0, 1:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.0.%d, selector: "+
			"{app: %s}, ports: [{port: 80}]}\n", name, n, name)
	case 2:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.0.%d, selector: "+
			"{app: %s, tier: a}, ports: [{port: 80, targetPort: x}]}\n", name, n, name)
	case 3:
		return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: e%d, labels: "+
			"{kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: "+
			"[10.1.0.%d]}]\n", r.IntN(3), name, n)
	case 4:
		return fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: %s}\nsubsets: [{addresses: [{ip: "+
			"10.2.0.%d}], ports: [{port: 9090}]}]\n", name, n)
	case 5:
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d, labels: {app: %s, tier: %c}}\n"+
			"spec: {containers: [{ports: [{name: x, containerPort: %d}]}]}\nstatus: {phase: Running, podIP: 10.3.0.%d}\n",
			r.IntN(4), name, 'a'+r.IntN(2), 8080+n, n)
	case 6:
		return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c%d}\nspec: {cidrs: "+
			"[10.96.0.0/1%d]}\n", r.IntN(2), n)
	default:
		return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDR: 10.3.%d.0/24}\n", n)
	}
}

func randomFile(r *rand.Rand) string {
	docs := make([]string, r.IntN(6))
	for i := range docs {
		docs[i] = randomDocument(r)
	}
	return "# a file\n" + strings.Join(docs, "---\n")
}

// all returns everything in a Store.
func all(store *cluster.Store) (view, string) {
	change, v := store.Take(), view{}
	for _, s := range change.Services {
		if s.Service == nil {
			continue
		}
		line := fmt.Sprint(s.Service.ClusterIPs)
		set := map[string]bool{}
		for _, sl := range s.Slices {
			set[fmt.Sprint(sl.Name, sl.Ports, sl.Endpoints)] = true
		}
		v[s.Name.Name] = line + fmt.Sprint(set)
	}
	facts := change.Facts
	if facts == nil {
		facts = &cluster.Facts{}
	}
	node := "none"
	if facts.Node != nil {
		node = fmt.Sprint(*facts.Node)
	}
	return v, fmt.Sprint(facts.ServiceCIDRs, " ", node)
}

// After any sequence of writes, changes and removals the Store has the objects that it
// would have if the files were read for the first time.
func TestChangesEqualAFreshStart(t *testing.T) {
	for seed := range seeds.Of(t, 100) {
		r := rand.New(rand.NewPCG(seed, 1))
		files := []*file{{path: "a.yaml"}, {path: "b.yaml"}, {path: "c.yaml"}}
		store, last := cluster.NewStore(), state{}
		for step := range 15 {
			files[r.IntN(len(files))].objects = parse(randomFile(r)).objects
			objects, _ := merge(files)
			next := stateOf(objects, "n1")
			apply(store, last, next)
			last = next

			fresh := cluster.NewStore()
			apply(fresh, state{}, next)
			want, wantFacts := all(fresh)
			store.SetNode(&cluster.Node{Name: "other"}) // so that Take returns everything
			store.SetNode(next.node)
			got, gotFacts := all(store)
			if d := cmp.Diff(want, got) + cmp.Diff(wantFacts, gotFacts); d != "" {
				t.Fatalf("step %d (-fresh +changed):\n%s", step, d)
			}
			if n, m := len(store.SliceNames()), len(fresh.SliceNames()); n != m {
				t.Fatalf("step %d: %d slices, fresh %d", step, n, m)
			}
		}
	}
}
