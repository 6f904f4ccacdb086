//go:build linux

package conformance

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// A connection that was not decided where explain names is an error, in both directions.
func TestSocketsAreComparedWithExplain(t *testing.T) {
	l := lab.New(t, lab.Options{})
	near, far := l.Pod(l.NodeA, "10.180.0.1"), l.Pod(l.NodeB, "10.180.1.1")
	sockets, packets := explain.Case{Path: []string{"program sluice_connect4"}}, explain.Case{Path: []string{"map fronts"}}
	unknown := explain.Case{Client: explain.Client{CountsAs: explain.Outside}}
	three := observation{results: make([]lab.Result, 3)}
	for _, tt := range []struct {
		name    string
		client  *lab.Host
		c       explain.Case
		got     observation
		decided uint64
		e       env
		wrong   bool
	}{
		{name: "at sockets", client: near, c: sockets, got: three, decided: 3},
		{name: "one by packets", client: near, c: sockets, got: three, decided: 2, wrong: true},
		{name: "none", client: near, c: sockets, wrong: true},
		{name: "by packets", client: near, c: packets, got: three},
		{name: "at a socket without a program", client: near, c: packets, got: three, decided: 1, wrong: true},
		{name: "a pod of another node", client: far, c: sockets, got: three},
		{name: "at a socket here for another node", client: far, c: sockets, got: three, decided: 1, wrong: true},
		{name: "pings", client: near, c: packets, got: observation{pings: true}, decided: 1},
		{name: "beside other clients", client: near, c: packets, got: three, decided: 9, e: env{probers: []*prober{{}}}},
		{
			name: "pods that nothing recognizes", client: near, c: unknown, got: three, decided: 3,
			e: env{settings: settings{detector: "none"}},
		},
	} {
		e := &tt.e
		e.lab, e.world, e.decided = l, &world{remote: map[string]bool{far.Name(): true}}, 40
		e.proxy = &proxyUnderTest{plane: Plane{Decided: func(*lab.Host) (uint64, error) { return 40 + tt.decided, nil }}}
		if err := e.compareSockets(tt.client, tt.c, tt.got); (err != nil) != tt.wrong {
			t.Errorf("%s: the error is %v; want one: %t", tt.name, err, tt.wrong)
		}
	}
}
