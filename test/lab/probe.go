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

// Protocol is the protocol of a probe, with short names.
type Protocol = cluster.Protocol

// The protocols of Services.
const (
	TCP  = cluster.TCP
	UDP  = cluster.UDP
	SCTP = cluster.SCTP
)

// Echo is an ICMP echo request; the port is ignored.
const Echo Protocol = 1

// Outcome is the outcome of a probe.
type Outcome uint8

// The outcomes.
const (
	Failed      Outcome = iota // the client could not send; see Err
	Answered                   // Backend answered
	Refused                    // ICMP port unreachable
	Reset                      // TCP RST or SCTP ABORT: nothing listens
	Unreachable                // any other ICMP error
	TimedOut                   // no answer
)

// String returns the outcome as a word.
func (o Outcome) String() string {
	return [...]string{"failed", "answered", "refused", "reset", "unreachable", "timed out"}[o]
}

// ICMP is an ICMP error message that a client received.
type ICMP struct {
	Type, Code uint8
	From       netip.Addr // sender
	MTU        uint32     // of "too big"
}

// Result is the result of a Probe.
type Result struct {
	Outcome Outcome
	Backend netip.AddrPort // the server that answered, by its own address
	Source  netip.AddrPort // the client's address as Backend saw it
	Local   netip.AddrPort // the client's own address
	Echoed  bool           // the complete Payload came back
	ICMP    ICMP           // for Refused and Unreachable
	Took    time.Duration
	Err     error // details for messages

	// Connected is how long the handshake of a TCP connection took, without the first answer on it.
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

// Masqueraded reports whether the backend saw another address than the client's own.
func (r Result) Masqueraded() bool { return r.Source.Addr() != r.Local.Addr() }

// Probe is a connection attempt.
type Probe struct {
	Protocol Protocol
	To       netip.AddrPort

	// From is the client's address and port. Either may be unset. The address need not belong to the host.
	From netip.AddrPort

	// Unconnected means that a UDP socket does not connect: it sends to To, and an answer from another address is an
	// error.
	Unconnected bool

	// Payload is sent to the server, which sends it back.
	Payload []byte

	// Timeout is how long to wait; Options.Timeout if zero.
	Timeout time.Duration
}

// Dial makes one connection attempt.
func (h *Host) Dial(p Protocol, to netip.AddrPort) Result {
	return h.Try(Probe{Protocol: p, To: to})
}

// Ping sends an ICMP echo request.
func (h *Host) Ping(to netip.Addr) Result {
	return h.Try(Probe{Protocol: Echo, To: netip.AddrPortFrom(to, 0)})
}

// Repeat makes a probe n times, one after another.
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
		return r // the handshake has identified the server
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

// Outcomes counts results by outcome.
func Outcomes(results []Result) map[Outcome]int {
	out := map[Outcome]int{}
	for _, r := range results {
		out[r.Outcome]++
	}
	return out
}

// outcomeOf converts the error of a socket into an outcome.
func outcomeOf(err error) Result {
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
