package cluster

import (
	"fmt"
	"testing"
)

// Peers announces each change once, and no Node that is as before.
func TestPeers(t *testing.T) {
	p := NewStore().Peers()
	node := func(name, addr string) *Node { return &Node{Name: name, Addresses: ips(addr)} }
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "[] false"},
		{func() { p.Set(node("b", "10.0.0.2")); p.Set(node("a", "10.0.0.1")) }, "[a b] false changed"},
		{func() { p.Set(node("a", "10.0.0.1")) }, "[a b] false"},
		{p.Listed, "[a b] true changed"},
		{p.Listed, "[a b] true"},
		{func() { p.Set(node("a", "10.0.0.9")) }, "[a b] true changed"},
		{func() { p.Delete("a"); p.Delete("c") }, "[b] true changed"},
		{func() { p.Delete("a") }, "[b] true"},
	} {
		step.do()
		nodes, listed := p.All()
		names := []string{}
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		got := fmt.Sprint(names, listed)
		select {
		case <-p.Changed():
			got += " changed"
		default:
		}
		if got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
	select {
	case <-p.Wanted():
		t.Error("wanted before Want")
	default:
	}
	p.Want()
	p.Want()
	<-p.Wanted()
}
