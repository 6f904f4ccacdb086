//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Protocol is what a probe speaks. The names are here for short.
type Protocol = cluster.Protocol

// The protocols of Services.
const (
	TCP  = cluster.TCP
	UDP  = cluster.UDP
	SCTP = cluster.SCTP
)

// Echo asks for an ICMP echo, of any port.
const Echo Protocol = 1

// Outcome is how an attempt to talk to somebody ended.
type Outcome uint8

// The outcomes.
const (
	Failed      Outcome = iota // the client could not even try; Err says why
	Answered                   // Backend answered
	Refused                    // ICMP port unreachable
	Reset                      // a TCP RST or SCTP ABORT: nobody listens there
	Unreachable                // any other ICMP error
	TimedOut                   // silence
)

// String returns the outcome as a word.
func (o Outcome) String() string {
	return [...]string{"failed", "answered", "refused", "reset", "unreachable", "timed out"}[o]
}

// ICMP is an error message a client was sent.
type ICMP struct {
	Type, Code uint8
	From       netip.Addr // who sent it
	MTU        uint32     // of "too big"
}

// Result is what became of a Probe.
type Result struct {
	Outcome Outcome
	Backend netip.AddrPort // who answered, as it calls itself
	Source  netip.AddrPort // the client, as Backend saw it
	Local   netip.AddrPort // the client, as it sees itself
	Echoed  bool           // Payload came back whole
	ICMP    ICMP           // for Refused and Unreachable
	Took    time.Duration
	Err     error // for people

	// Connected is how long the handshake of a TCP connection took, without the
	// first answer on it.
	Connected time.Duration
}

// String returns the result as one line.
func (r Result) String() string {
	s := r.Outcome.String()
	switch r.Outcome {
	case Answered:
		s += fmt.Sprintf(" by %s, which saw %s", r.Backend, r.Source)
	case Refused, Unreachable:
		s += fmt.Sprintf(" by %s (ICMP type %d code %d)", r.ICMP.From, r.ICMP.Type, r.ICMP.Code)
	}
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Masqueraded reports whether the backend saw another address than the client's.
func (r Result) Masqueraded() bool { return r.Source.Addr() != r.Local.Addr() }

// Probe is one attempt to talk to somebody.
type Probe struct {
	Protocol Protocol
	To       netip.AddrPort

	// From is the client's address and port, of which either may be left out.
	// The address need not be one of the host's.
	From netip.AddrPort

	// Payload is sent along, to come back whole.
	Payload []byte

	// Timeout is how long to wait; Options.Timeout if zero.
	Timeout time.Duration
}

// Dial tries to talk to somebody, once.
func (h *Host) Dial(p Protocol, to netip.AddrPort) Result {
	return h.Try(Probe{Protocol: p, To: to})
}

// Ping asks for an ICMP echo.
func (h *Host) Ping(to netip.Addr) Result {
	return h.Try(Probe{Protocol: Echo, To: netip.AddrPortFrom(to, 0)})
}

// Repeat makes a probe n times, one after the other.
func (h *Host) Repeat(n int, p Probe) []Result {
	out := make([]Result, 0, n)
	for range n {
		out = append(out, h.Try(p))
	}
	return out
}

// TryAll makes probes at the same time and returns the results in their order.
func (h *Host) TryAll(probes ...Probe) []Result {
	out := make([]Result, len(probes))
	var wait sync.WaitGroup
	for i, p := range probes {
		wait.Go(func() { out[i] = h.Try(p) })
	}
	wait.Wait()
	return out
}

// Try makes a probe.
func (h *Host) Try(p Probe) Result {
	f, r := h.Open(p)
	if f == nil {
		return r
	}
	defer f.Close()
	if r.Outcome == Answered && len(p.Payload) == 0 {
		return r // who is there was learnt on connecting
	}
	answer := f.Ask(p.Payload)
	answer.Took += r.Took
	return answer
}

// Spread counts the answers of each backend.
func Spread(results []Result) map[netip.AddrPort]int {
	out := map[netip.AddrPort]int{}
	for _, r := range results {
		if r.Outcome == Answered {
			out[r.Backend]++
		}
	}
	return out
}

// Outcomes counts how attempts ended.
func Outcomes(results []Result) map[Outcome]int {
	out := map[Outcome]int{}
	for _, r := range results {
		out[r.Outcome]++
	}
	return out
}

// judge turns what a socket said into an outcome.
func judge(err error) Result {
	var icmp *icmpError
	switch {
	case err == nil:
		return Result{Outcome: Answered}
	case errors.As(err, &icmp):
		r := Result{Outcome: Unreachable, ICMP: icmp.ICMP, Err: err}
		if icmp.portUnreachable() {
			r.Outcome = Refused
		}
		return r
	case errors.Is(err, errTimeout):
		return Result{Outcome: TimedOut, Err: err}
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET), errors.Is(err, errAbort):
		return Result{Outcome: Reset, Err: err}
	}
	return Result{Outcome: Failed, Err: err}
}
