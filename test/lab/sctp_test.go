//go:build linux

package lab

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestSCTPPacketsSurviveEncoding(t *testing.T) {
	for _, in := range []sctpPacket{
		{sport: 1, dport: 2, tag: 3, kind: chunkAbort},
		{sport: 65535, dport: 80, kind: chunkInit, body: initBody(7)},
		{sport: 80, dport: 1, tag: 9, kind: chunkInitAck, body: initBody(7, param(paramCookie, []byte("odd"))...)},
	} {
		b := in.encode()
		out, ok := decodeSCTP(b)
		if !ok || out.sport != in.sport || out.dport != in.dport || out.tag != in.tag ||
			out.kind != in.kind || !bytes.Equal(out.body, in.body) {
			t.Errorf("%+v came back as %+v", in, out)
		}
		if len(b)%4 != 0 {
			t.Errorf("%+v takes %d bytes", in, len(b))
		}
		b[len(b)-1] ^= 1
		if _, ok := decodeSCTP(b); ok {
			t.Errorf("a damaged packet was accepted: %x", b)
		}
	}
}

func TestSCTPRejectsTruncatedPackets(t *testing.T) {
	whole := sctpPacket{kind: chunkInit, body: initBody(7)}.encode()
	for n := range whole {
		if _, ok := decodeSCTP(whole[:n]); ok {
			t.Errorf("accepted %d of %d bytes", n, len(whole))
		}
	}
}

func TestSCTPFindsParameters(t *testing.T) {
	params := append(pad(param(9, []byte("other"))), param(paramCookie, []byte("cookie"))...)
	if got := findParam(params, paramCookie); string(got) != "cookie" {
		t.Errorf("cookie is %q", got)
	}
	for _, bad := range [][]byte{nil, {0}, {0, 7, 0, 3}, {0, 7, 0, 9, 1}, params[:len(params)-1]} {
		if got := findParam(bad, paramCookie); got != nil {
			t.Errorf("found %q in %x", got, bad)
		}
	}
}

func TestSCTPAssociationStaysOpen(t *testing.T) {
	s := newTestLab(t, Options{})
	s.far.Serve(SCTP, 80)
	for _, a := range s.far.Addrs() {
		to := Probe{Protocol: SCTP, To: netip.AddrPortFrom(a, 80)}
		f, r := s.near.Open(to)
		if f == nil {
			t.Fatal(r)
		}
		for range 3 {
			if r := f.Ask([]byte("beat")); r.Outcome != Answered || !r.Echoed || r.Backend != to.To {
				t.Errorf("heartbeat to %s: %s", a, r)
			}
		}
		f.Close()
	}
}
