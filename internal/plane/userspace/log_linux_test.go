package userspace_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// At loopback addresses, where people connect, the log has the address of each socket, once: not again when the next
// run inherits it.
func TestTheLogHasAddresses(t *testing.T) {
	ns := kerneltest.Namespace(t)
	backend := echoServer(t, ns)
	r := begin(t, ns, plane.Inherited{})
	if err := r.compare(t, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	in := r.end(t)
	_, line, _ := strings.Cut(r.log.String(), " ") // after the time
	if want := "level=INFO msg=Listening service=shop/web port=\"\" protocol=tcp address=127.0.0.1:8080\n"; line != want {
		t.Errorf("the log has %s, want %s", line, want)
	}
	r = begin(t, ns, in)
	if err := r.compare(t, backend).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if got := r.log.String(); got != "" {
		t.Errorf("the log of the next run has %s", got)
	}
}

// SCTP is not forwarded: a note at the start says that its ports are refused, and explanations of them say why.
func TestSCTPIsRefused(t *testing.T) {
	s, err := userspace.Loopback().Probe(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	const note = "Ports with SCTP are refused: mode userspace forwards TCP and UDP only"
	if !slices.Contains(s.Notes, note) {
		t.Errorf("the notes are %q", s.Notes)
	}
	facts := userspace.Kind(iptables.PortalsKind()).Facts
	for protocol, want := range map[cluster.Protocol]plane.Verdict{
		cluster.TCP: "", cluster.UDP: "", cluster.SCTP: plane.Refuse,
	} {
		if got := facts.Without(&route.Port{Protocol: protocol}); got.Verdict != want {
			t.Errorf("%s: %+v, want verdict %q", protocol, got, want)
		}
	}
}
