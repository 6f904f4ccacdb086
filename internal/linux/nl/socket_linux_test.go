package nl

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A part has several messages; one that is cut off is not read. The last one ends the answer, with an error code or
// without.
func TestMessages(t *testing.T) {
	encode := func(typ netlink.HeaderType, data []byte) []byte {
		m := netlink.Message{Header: netlink.Header{Type: typ, Sequence: 7, PID: 9}, Data: data}
		m.Header.Length = uint32(messageHeader + len(data))
		b, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for code, want := range map[int32]error{0: nil, -int32(unix.ENOENT): unix.ENOENT} {
		part := encode(30, []byte("data"))
		part = append(part, encode(netlink.Error, binary.NativeEndian.AppendUint32(nil, uint32(code)))...)
		part = append(part, encode(31, []byte("cut off!"))[:20]...)
		var types []netlink.HeaderType
		for m := range Messages(part) {
			types = append(types, m.Header.Type)
			if m.Header.Sequence != 7 || m.Header.PID != 9 {
				t.Errorf("read %+v", m.Header)
			}
			ends, err := Ends(m)
			if ends != (m.Header.Type == netlink.Error) || ends && !errors.Is(err, want) {
				t.Errorf("message %d: ends %t, %v; want %v", m.Header.Type, ends, err, want)
			}
		}
		if len(types) != 2 || types[0] != 30 || types[1] != netlink.Error {
			t.Errorf("read messages of types %d", types)
		}
	}
	if _, err := Ends(netlink.Message{Header: netlink.Header{Type: netlink.Done}}); !errors.Is(err, errTruncated) {
		t.Errorf("without a code: %v", err)
	}
}
