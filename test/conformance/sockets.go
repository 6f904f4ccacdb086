//go:build linux

package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/test/lab"
)

// noteDecided stores how many connections were decided at sockets so far, before the connections of a step.
func (e *env) noteDecided() (err error) {
	if e.proxy.plane.Decided != nil {
		e.decided, err = e.proxy.plane.Decided(e.lab.NodeA)
	}
	return err
}

// compareSockets verifies that connections of a step were decided at sockets if explain names a program for them, and
// that none was otherwise. It verifies nothing beside other clients, and for pods where nothing recognizes them.
func (e *env) compareSockets(client *lab.Host, c explain.Case, got observation) error {
	if e.proxy.plane.Decided == nil || len(e.probers) > 0 || got.pings {
		return nil
	}
	now, err := e.proxy.plane.Decided(e.lab.NodeA)
	if err != nil {
		return err
	}
	n := int(now - e.decided)
	named := slices.ContainsFunc(c.Path, func(text string) bool { return strings.HasPrefix(text, "program ") })
	named = named && !e.onNodeB(client) // explain does not know where a pod is
	if want := max(1, len(got.results)); named && n < want {
		return fmt.Errorf("%d connections were decided at sockets, want %d or more", n, want)
	}
	if unknown := e.settings.detector == "none" && c.Client.CountsAs == explain.Outside; !named && n > 0 && !unknown {
		return fmt.Errorf("%d connections were decided at sockets, want none", n)
	}
	return nil
}
