package kube

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// All Nodes are watched only once a part wants them.
func TestPeersAreWatchedWhenTheyAreWanted(t *testing.T) {
	const request = nodesPath + "  "
	api := newAPIServer(t)
	api.set(nodesPath, node("n1", "10.0.0.1"))
	api.set(nodesPath, node("n2", "10.0.0.2"))
	f := start(t, api)
	f.ready()
	f.until(func() string {
		if f.facts.Node == nil {
			return "the own Node is missing"
		}
		return ""
	})
	if slices.Contains(api.requestLog(), request) {
		t.Fatal("all Nodes are requested although no part wants them")
	}
	check := func(want string) {
		t.Helper()
		f.until(func() string {
			nodes, listed := f.store.Peers().All()
			got := ""
			for _, n := range nodes {
				got += fmt.Sprint(n.Name, n.Addresses, " ")
			}
			return cmp.Diff(want, got+fmt.Sprint(listed))
		})
	}
	check("false")
	f.store.Peers().Want()
	check("n1[10.0.0.1] n2[10.0.0.2] true")
	api.set(nodesPath, node("n2", "10.0.0.9"))
	api.set(nodesPath, node("n3", "10.0.0.3"))
	check("n1[10.0.0.1] n2[10.0.0.9] n3[10.0.0.3] true")
	api.remove(nodesPath, "/n2")
	check("n1[10.0.0.1] n3[10.0.0.3] true")
	if !slices.Contains(api.requestLog(), request) {
		t.Errorf("no request %q in %q", request, api.requestLog())
	}
}
