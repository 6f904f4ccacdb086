package nl

import (
	"errors"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
)

// Attributes are encoded as the library encodes them, and read back.
func TestAttributes(t *testing.T) {
	for _, text := range []string{"", "a", "four", "more than four"} {
		want, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: 7, Data: []byte(text)},
			{Type: 8 | netlink.Nested, Data: mustMarshal(t, netlink.Attribute{Type: 1, Data: []byte(text)})},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := AppendNested(Append(nil, 7, text), 8, func(b []byte) []byte { return Append(b, 1, text) })
		if string(got) != string(want) {
			t.Errorf("%q is encoded as\n%x, want\n%x", text, got, want)
		}
		withZero, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: 9, Data: []byte(text + "\x00")}})
		if err != nil {
			t.Fatal(err)
		}
		if got := AppendString(nil, 9, text); string(got) != string(withZero) {
			t.Errorf("%q with its end is encoded as\n%x, want\n%x", text, got, withZero)
		}
		var types []uint16
		err = Walk(got, func(typ uint16, data []byte) error {
			types = append(types, typ)
			if typ == 7 && string(data) != text {
				t.Errorf("read %q, want %q", data, text)
			}
			return nil
		})
		if err != nil || len(types) != 2 || types[0] != 7 || types[1] != 8 {
			t.Errorf("%q: types %d, %v", text, types, err)
		}
	}
}

func mustMarshal(t *testing.T, a netlink.Attribute) []byte {
	t.Helper()
	b, err := netlink.MarshalAttributes([]netlink.Attribute{a})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWalkEndsWithAnError(t *testing.T) {
	whole := string(Append(nil, 1, "12345678"))
	nothing := func(uint16, []byte) error { return nil }
	for name, b := range map[string]string{
		"an attribute that is cut off": whole[:8],
		"one shorter than its header":  "\x03\x00" + whole[2:],
	} {
		if err := Walk([]byte(b), nothing); !errors.Is(err, errTruncated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop := errors.New("stop")
	calls := 0
	err := Walk([]byte(strings.Repeat(whole, 3)), func(uint16, []byte) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}
