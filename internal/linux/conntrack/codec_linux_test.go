package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var sample = Entry{
	Protocol: UDP, Zone: 7, ID: 9, Status: DstNAT,
	OrigSrc:  netip.MustParseAddrPort("[fd00::1]:1000"),
	OrigDst:  netip.MustParseAddrPort("[fd96::10]:53"),
	ReplySrc: netip.MustParseAddrPort("[fd01::1]:5353"),
	ReplyDst: netip.MustParseAddrPort("[fd00::1]:1000"),
}

// A deletion request decodes as the original direction of the entry, with its zone and ID.
func TestEncodeDelete(t *testing.T) {
	got, err := decode(encodeKey(sample))
	if err != nil {
		t.Fatal(err)
	}
	want := sample
	want.Status, want.ReplySrc, want.ReplyDst = 0, netip.AddrPort{}, netip.AddrPort{}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A filter has no IPv6 addresses, as the kernel would leave out exactly the matching entries.
func TestEncodeFilterIPv6(t *testing.T) {
	f := Filter{Family: IPv6, Protocol: UDP, OrigDst: sample.OrigDst, ReplySrc: sample.ReplySrc}
	got, err := decode(encodeFilter(f))
	if err != nil {
		t.Fatal(err)
	}
	if got.OrigDst.Addr().IsValid() || got.ReplySrc.Addr().IsValid() {
		t.Errorf("addresses are sent: %+v", got)
	}
	if got.OrigDst.Port() != 53 || got.ReplySrc.Port() != 5353 || got.Protocol != UDP {
		t.Errorf("ports are not sent: %+v", got)
	}
}

// A listing is repeated while it is interrupted, at most five times, but not after any other error.
func TestRepeat(t *testing.T) {
	cases := []struct {
		name    string
		results []error
		calls   int
		want    error
	}{
		{"at once", []error{nil}, 1, nil},
		{"third time", []error{unix.EINTR, unix.ENOBUFS, nil}, 3, nil},
		{"never", []error{unix.EINTR, unix.EINTR, unix.EINTR, unix.EINTR, unix.EINTR, nil}, 5, unix.EINTR},
		{"other error", []error{unix.EPERM, nil}, 1, unix.EPERM},
	}
	for _, c := range cases {
		calls := 0
		err := repeat(func() error { calls++; return c.results[calls-1] })
		if !errors.Is(err, c.want) || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", c.name, err, calls, c.want, c.calls)
		}
	}
}

// Errors that an operator can fix contain advice.
func TestRemedy(t *testing.T) {
	for err, want := range map[error]string{
		unix.EPERM:      "CAP_NET_ADMIN",
		unix.EINVAL:     "modprobe nf_conntrack_netlink",
		unix.EOPNOTSUPP: "CONFIG_NF_CT_NETLINK",
	} {
		if got := remedy(err); !strings.Contains(got, want) {
			t.Errorf("%v: %q lacks %q", err, got, want)
		}
	}
	if got := remedy(unix.EIO); got != "" {
		t.Errorf("an input/output error has no remedy, got %q", got)
	}
}

// decode does not panic for any input.
func FuzzDecode(f *testing.F) {
	b := encodeKey(sample)
	f.Add(b)
	f.Add(b[:len(b)-3])
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, b []byte) {
		if e, err := decode(b); err == nil {
			_ = e.String()
		}
	})
}

// ListAll lists all entries of a family, as a kernel before 5.8 does, which ignores filters.
func (t *Table) ListAll(ctx context.Context, f Family, fn func(Entry) error) error {
	return t.list(ctx, header(f), fn)
}

// ListFiltered lists the entries that the kernel selects.
func (t *Table) ListFiltered(ctx context.Context, f Filter, fn func(Entry) error) error {
	return t.list(ctx, encodeFilter(f), fn)
}
