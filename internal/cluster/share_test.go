package cluster

import (
	"maps"
	"net/netip"
	"testing"
)

// Shares reach the reader with their Service, which need not exist yet. Equal ones wake nobody.
func TestSharesAreTaken(t *testing.T) {
	s, name := NewStore(), Name{"default", "web"}
	shares := Shares{ShareKey{"http", netip.MustParseAddrPort("10.0.0.1:80")}: {Part: 1}}
	s.SetShares(name, shares)
	s.Take()
	s.SetService(&Service{Name: name})
	if c := s.Take(); len(c.Services) != 1 || !maps.Equal(c.Services[0].Shares, shares) {
		t.Errorf("with the Service: %+v", c)
	}
	s.SetShares(name, maps.Clone(shares))
	if c := s.Take(); len(c.Services) != 0 {
		t.Errorf("equal shares: %+v", c)
	}
	s.SetShares(name, nil)
	if c := s.Take(); len(c.Services) != 1 || c.Services[0].Shares != nil {
		t.Errorf("without shares: %+v", c)
	}
	if len(s.shares) > 0 {
		t.Errorf("the store keeps %v", s.shares)
	}
}
