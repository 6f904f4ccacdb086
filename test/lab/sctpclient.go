//go:build linux

package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"
)

// abortGrace is how long a client waits for another answer after an ABORT: a kernel with SCTP sends
// an ABORT before the lab's server answers.
const abortGrace = 50 * time.Millisecond

// sctpPorts numbers the source ports, so that none is used again soon: IPVS drops the first
// packet of an association from a port that it remembers, and the lab repeats none.
var sctpPorts atomic.Uint32

// association is the client side of an SCTP association.
type association struct {
	local, remote uint16 // ports
	tag           uint32 // of both sides: the lab's server uses the client's
	cookie        []byte
	up            bool
}

// handshakeSCTP sends INIT and reads the identity of the server from INIT ACK.
func (f *Flow) handshakeSCTP(deadline time.Time) error {
	a := &association{local: f.probe.From.Port(), remote: f.probe.To.Port(), tag: rand.Uint32() | 1}
	if a.local == 0 {
		a.local = uint16(20000 + sctpPorts.Add(1)%40000)
	}
	f.assoc = a
	f.socket.mine = a.quotedIn
	f.socket.local = netip.AddrPortFrom(f.socket.local.Addr(), a.local)
	init := sctpPacket{sport: a.local, dport: a.remote, kind: chunkInit, body: initBody(a.tag)}
	if err := f.socket.write(init.encode(), deadline); err != nil {
		return err
	}
	ack, err := f.await(chunkInitAck, deadline)
	if err != nil {
		return err
	}
	if len(ack) < initSize || binary.BigEndian.Uint32(ack) != a.tag {
		return fmt.Errorf("%s answered with another tag", f.probe.To)
	}
	a.cookie = findParam(ack[initSize:], paramCookie)
	r, _, ok := readIdentity(a.cookie)
	if !ok {
		return fmt.Errorf("%s sent no identity", f.probe.To)
	}
	f.hello = r
	return nil
}

// askSCTP completes the association if necessary, and sends a heartbeat, whose content the server sends back.
func (f *Flow) askSCTP(payload []byte, deadline time.Time) (Result, error) {
	a := f.assoc
	if !a.up {
		if err := f.send(chunkCookie, a.cookie, deadline); err != nil {
			return Result{}, err
		}
		if _, err := f.await(chunkCookieAck, deadline); err != nil {
			return Result{}, err
		}
		a.up = true
	}
	message := nonce(payload)
	if err := f.send(chunkBeat, param(paramBeat, message), deadline); err != nil {
		return Result{}, err
	}
	for {
		body, err := f.await(chunkBeatAck, deadline)
		if err != nil {
			return Result{}, err
		}
		r, rest, ok := readIdentity(findParam(body, paramBeat))
		if ok && bytes.HasPrefix(rest, message[:16]) {
			r.Echoed = bytes.Equal(rest, message)
			return r, nil
		}
	}
}

func (f *Flow) send(kind chunkType, body []byte, deadline time.Time) error {
	a := f.assoc
	p := sctpPacket{sport: a.local, dport: a.remote, tag: a.tag, kind: kind, body: body}
	return f.socket.write(p.encode(), deadline)
}

// await reads until a chunk of a kind arrives for this association.
func (f *Flow) await(kind chunkType, deadline time.Time) ([]byte, error) {
	aborted := false
	b := make([]byte, 1<<16)
	for {
		n, err := f.socket.read(b, deadline)
		if aborted && errors.Is(err, errTimeout) {
			return nil, errAbort
		}
		if err != nil {
			return nil, err
		}
		p, ok := decodeSCTP(afterIP(b[:n], f.probe.To.Addr()))
		if !ok || !f.assoc.owns(p) {
			continue
		}
		if p.kind == kind {
			return p.body, nil
		}
		if p.kind == chunkAbort && !aborted {
			aborted = true
			deadline = earlier(deadline, time.Now().Add(abortGrace))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (a *association) owns(p sctpPacket) bool {
	return p.sport == a.remote && p.dport == a.local && p.tag == a.tag
}

// quotedIn reports whether an ICMP error is about this association.
func (a *association) quotedIn(e *icmpError) bool {
	return len(e.quoted) >= 4 &&
		binary.BigEndian.Uint16(e.quoted) == a.local && binary.BigEndian.Uint16(e.quoted[2:]) == a.remote
}

// afterIP skips the IP header, which raw sockets deliver for IPv4 only.
func afterIP(b []byte, like netip.Addr) []byte {
	if like.Is6() || len(b) == 0 {
		return b
	}
	return b[min(len(b), int(b[0]&15)*4):]
}
