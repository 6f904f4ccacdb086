//go:build linux

package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/test/lab"
)

// entryCheck says whether a change must delete the conntrack entry that node A has for a flow.
type entryCheck struct {
	flow    string
	deleted bool
}

func entryDeleted(flow string) entryCheck { return entryCheck{flow, true} }
func entryKept(flow string) entryCheck    { return entryCheck{flow, false} }

// entriesAfter makes a change and checks the conntrack entries of flows. It first waits until
// all entries that must be deleted are gone, and then verifies that the others are still there:
// no event reports that no further entry will be deleted.
func entriesAfter(change step, all ...entryCheck) step {
	return func(e *env) error {
		before := make([]conntrack.Entry, len(all))
		for i, f := range all {
			var err error
			if before[i], err = e.sendAndFind(f.flow); err != nil {
				return err
			}
		}
		if err := change(e); err != nil {
			return err
		}
		var wrong []error
		for _, ends := range []bool{true, false} {
			for i, f := range all {
				if f.deleted == ends {
					wrong = append(wrong, e.checkEntry(f, before[i]))
				}
			}
		}
		return errors.Join(wrong...)
	}
}

// checkEntry waits until an entry is deleted, or verifies that it is still there.
func (e *env) checkEntry(f entryCheck, before conntrack.Entry) error {
	gone := soon(func(e *env) error {
		there, err := e.hasEntry(before)
		if err == nil && there {
			err = fmt.Errorf("flow %s: its entry is still there: %s", f.flow, before)
		}
		return err
	})
	if f.deleted && e.traits().proxied { // or it leads to the process, which chooses another backend
		gone = soon(func(e *env) error {
			there, err := e.hasEntry(before)
			if err == nil && there && e.flows[f.flow].AskWithin(nil, lab.Soon).Outcome != lab.Answered {
				err = fmt.Errorf("flow %s: not answered, and its entry is still there: %s", f.flow, before)
			}
			return err
		})
	}
	atSocket := f.deleted && e.proxy.plane.Sockets && before.OrigDst != e.flows[f.flow].Probe().To
	if atSocket && e.flows[f.flow].Probe().Unconnected { // its next datagram goes to another backend
		gone = soon(func(e *env) error {
			if r := e.flows[f.flow].AskWithin(nil, lab.Soon); r.Outcome != lab.Answered || r.Backend == before.OrigDst {
				return fmt.Errorf("flow %s: %s, but its backend %s is gone", f.flow, r, before.OrigDst)
			}
			return nil
		})
	} else if atSocket { // its socket is destroyed, not the entry
		was := e.flows[f.flow].Destroyed()
		gone = soon(func(e *env) error {
			if r := e.flows[f.flow].AskWithin(nil, lab.Soon); e.flows[f.flow].Destroyed() == was {
				return fmt.Errorf("flow %s: %s, but its backend %s is gone", f.flow, r, before.OrigDst)
			}
			return nil
		})
	}
	if f.deleted {
		return gone(e)
	}
	there, err := e.hasEntry(before)
	if err == nil && !there {
		err = fmt.Errorf("flow %s: its entry is gone: %s", f.flow, before)
	}
	return err
}

// sendAndFind sends a packet on an open flow, answered or not, and returns its conntrack entry.
func (e *env) sendAndFind(name string) (conntrack.Entry, error) {
	f := e.flows[name]
	if f == nil {
		return conntrack.Entry{}, fmt.Errorf("no flow %q is open", name)
	}
	r, to := f.AskWithin(nil, lab.Soon), f.Probe()
	want := conntrack.Entry{Protocol: uint8(to.Protocol), OrigSrc: r.Local, OrigDst: to.To}
	entry, found, err := e.getEntry(want)
	if e.proxy.plane.Sockets && err == nil && !found {
		entry, found, err = e.entryOfSocket(want, r)
	}
	if err == nil && !found {
		err = fmt.Errorf("flow %s from %s has no entry", name, r.Local)
	}
	return entry, err
}

// entryOfSocket returns the entry of a flow whose socket may know the backend.
func (e *env) entryOfSocket(want conntrack.Entry, r lab.Result) (entry conntrack.Entry, found bool, err error) {
	if r.Outcome == lab.Answered {
		want.OrigDst = r.Backend
		return e.getEntry(want)
	}
	err = e.listEntries(want, func(c conntrack.Entry) {
		if c.OrigSrc == want.OrigSrc {
			entry, found = c, true
		}
	})
	return entry, found, err
}

// hasEntry reports whether the same entry is still there. The ID alone does not identify it: the kernel computes it
// from the entry's address in memory, and a later entry of the flow often gets the memory of the deleted one.
func (e *env) hasEntry(entry conntrack.Entry) (there bool, err error) {
	c, found, err := e.getEntry(entry)
	same := c.ID == entry.ID && c.ReplySrc == entry.ReplySrc && c.ReplyDst == entry.ReplyDst
	return found && same, err
}

// getEntry returns the conntrack entry of node A with the protocol and the addresses of the first packet of another
// one.
func (e *env) getEntry(want conntrack.Entry) (entry conntrack.Entry, found bool, err error) {
	err = e.listEntries(want, func(c conntrack.Entry) {
		if c.OrigSrc == want.OrigSrc && c.OrigDst == want.OrigDst {
			entry, found = c, true
		}
	})
	return entry, found, err
}

// listEntries lists the conntrack entries of node A with the protocol and the family of another one. A listing of a
// protocol takes as long as one of all, as the kernel walks through the table of the machine.
func (e *env) listEntries(like conntrack.Entry, each func(conntrack.Entry)) error {
	table, err := conntrack.Open(e.lab.NodeA.NetNSFD())
	if err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	defer func() { _ = table.Close() }() // nothing is left to lose
	all := conntrack.Filter{Family: like.Family(), Protocol: like.Protocol}
	err = table.Each(context.Background(), all, func(c conntrack.Entry) error {
		each(c)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list conntrack: %w", err)
	}
	return nil
}

// connectDuring starts a TCP connection that cannot succeed, makes a change, and verifies that
// one of the backends answers a retransmission within a few seconds.
func connectDuring(from, to string, change step, backends ...string) step {
	return func(e *env) error {
		client, probe, err := e.probe(from, to)
		if err != nil {
			return err
		}
		want, err := e.backends(backends)
		if err != nil {
			return err
		}
		probe.Timeout = 20 * time.Second
		answer := make(chan lab.Result, 1)
		tap := client.Tap()
		go func() { answer <- client.Try(probe) }()
		err = eventually(changeTimeout, func() error {
			if tap.Count(func(p lab.Packet) bool { return p.Out && p.Dst == probe.To }) == 0 {
				return fmt.Errorf("%s sent no SYN", from)
			}
			return nil
		})
		if err == nil {
			err = change(e)
		}
		began := time.Now()
		r := <-answer
		took := time.Since(began)
		switch {
		case err != nil:
			return err
		case r.Outcome != lab.Answered || !slices.Contains(want, r.Backend):
			return fmt.Errorf("from %s to %s: %s, want an answer of %s", from, to, r, want)
		case took > 10*time.Second:
			return fmt.Errorf("from %s to %s: answered %v after the change, want at most 10s", from, to, took)
		}
		return nil
	}
}

// untranslatedEntry verifies that node A has a conntrack entry for an unanswered client whose
// packets it does not translate.
func untranslatedEntry(from, to string) step {
	return func(e *env) error {
		_, p, err := e.probe(from, to)
		if err != nil {
			return err
		}
		found := false
		err = e.listEntries(conntrack.Entry{Protocol: uint8(p.Protocol), OrigDst: p.To}, func(c conntrack.Entry) {
			found = found || c.OrigDst == p.To && !c.Translated() && !c.Answered()
		})
		if err == nil && !found {
			err = fmt.Errorf("no untranslated, unanswered conntrack entry for %s", to)
		}
		return err
	}
}

// openTo opens flows under a name until one leads to the given backend.
func openTo(name, from, to, backend string) step {
	return func(e *env) error {
		want, err := e.backends([]string{backend})
		if err != nil {
			return err
		}
		for range 4 * lab.Samples(4) {
			if err := sequence(open(name, from, to), send(name))(e); err != nil {
				return err
			}
			if e.answered[name] == want[0] {
				return nil
			}
		}
		return fmt.Errorf("%s to %s: %s never answers", from, to, want[0])
	}
}

// dropUDP makes a pod drop UDP packets for a port without an answer.
func dropUDP(pod string, port uint16) step {
	return func(e *env) error {
		h, err := e.host(pod)
		if err != nil {
			return err
		}
		e.alters("a pod that drops packets")
		h.Nft(fmt.Sprintf(`table inet drop-udp {
  chain input { type filter hook input priority 0; udp dport %d drop; }
}`, port))
		return nil
	}
}

// outOfWindow makes the server of an open TCP flow send segments far behind the window, like
// late retransmissions. The client must not reset the connection.
func outOfWindow(name, client, server string) step {
	return func(e *env) error {
		c, err := e.host(client)
		if err != nil {
			return err
		}
		s, err := e.host(server)
		if err != nil {
			return err
		}
		tap := c.Tap()
		r := e.flows[name].AskWithin(nil, 4*lab.Soon)
		last, ok := lastSegment(tap.Packets(), r.Local)
		if r.Outcome != lab.Answered || !ok {
			return fmt.Errorf("flow %s: %s, captured an answer: %t", name, r, ok)
		}
		last.Src, last.Dst, last.Payload = r.Backend, r.Source, []byte("boom")
		for _, behind := range []uint32{100000, 1 << 30} {
			late := last
			late.Flags, late.Seq = lab.ACK, last.Seq-behind
			s.Inject(e.lab.NodeA, late.Packet())
		}
		// The answer to this request reaches the client after the injected segments.
		if r := e.flows[name].AskWithin(nil, changeTimeout); r.Outcome != lab.Answered {
			return fmt.Errorf("flow %s: %s after late segments", name, r)
		}
		if n := tap.Count(func(p lab.Packet) bool { return p.Out && isReset(p) }); n > 0 {
			return fmt.Errorf("flow %s: the client sent %d RST", name, n)
		}
		return nil
	}
}

// lastSegment returns the last TCP segment that a client received.
func lastSegment(seen []lab.Packet, client netip.AddrPort) (last lab.Segment, found bool) {
	for _, p := range seen {
		if p.Out || p.Protocol != lab.TCP || p.Dst != client {
			continue
		}
		h := tcpHeader(p)
		last = lab.Segment{
			Protocol: lab.TCP,
			Seq:      binary.BigEndian.Uint32(h[4:]) + uint32(len(h)-int(h[12]>>4)*4),
			Ack:      binary.BigEndian.Uint32(h[8:]),
		}
		found = true
	}
	return last, found
}

func isReset(p lab.Packet) bool { return p.Protocol == lab.TCP && tcpHeader(p)[13]&lab.RST != 0 }

// tcpHeader returns the packet without its IP header.
func tcpHeader(p lab.Packet) []byte {
	if p.Dst.Addr().Is6() {
		return p.Data[40:]
	}
	return p.Data[int(p.Data[0]&15)*4:]
}
