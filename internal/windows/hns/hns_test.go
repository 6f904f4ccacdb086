package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// HNS spells the ID of an object in several ways; this package in one.
func TestCanonicalIDs(t *testing.T) {
	const mixed, lower = "C0FFEE00-abcd-4EF0-8abc-00000000000A", "c0ffee00-abcd-4ef0-8abc-00000000000a"
	network := Network{ID: mixed, Name: "Pods", Type: Overlay}
	if got, want := network.Canonical(), (Network{ID: lower, Name: "Pods", Type: Overlay}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	endpoint := Endpoint{ID: mixed, Name: "Root", Network: mixed, MAC: "02-11-0A-B4-01-07", Remote: true}
	ofRoot := Endpoint{ID: lower, Name: "Root", Network: lower, MAC: "02-11-0A-B4-01-07", Remote: true}
	if got, want := endpoint.Canonical(), ofRoot; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	ids := []string{mixed}
	balancer := LoadBalancer{ID: mixed, Port: 80, Endpoints: ids, Other: true}
	canonical := LoadBalancer{ID: lower, Port: 80, Endpoints: []string{lower}, Other: true}
	if got, want := balancer.Canonical(), canonical; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if ids[0] != mixed {
		t.Error("Canonical changes its argument")
	}
}

// The MAC addresses of remote endpoints are kube-proxy's.
func TestMAC(t *testing.T) {
	for addr, want := range map[string]string{
		"10.180.1.7":         "02-11-0A-B4-01-07",
		"255.254.0.1":        "02-11-FF-FE-00-01",
		"fd00:10:180::1:2a3": "02-11-A3-02-01-00",
		"2001:db8::a:b0c":    "02-11-0C-0B-0A-00",
	} {
		if got := MAC(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// An object that is deleted while all are listed, such as the endpoint of a container that ends, does not make the
// list fail.
func TestAnObjectIsDeletedWhileAllAreListed(t *testing.T) {
	gone, other := fmt.Errorf("list endpoints: %w", ErrNotFound), errors.New("0x803b0099")
	for name, tc := range map[string]struct {
		errs []error
		want error
	}{
		"none":      {errs: []error{nil}},
		"two":       {errs: []error{gone, gone, nil}},
		"always":    {errs: slices.Repeat([]error{gone}, listAttempts), want: gone},
		"HNS fails": {errs: []error{other}, want: other},
	} {
		calls := 0
		list, err := complete(func() ([]int, error) { calls++; return []int{calls}, tc.errs[calls-1] })
		if !errors.Is(err, tc.want) || calls != len(tc.errs) || err == nil && list[0] != calls {
			t.Errorf("%s: %v, %v after %d calls", name, list, err, calls)
		}
	}
}
