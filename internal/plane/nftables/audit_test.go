package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/route"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// audit verifies a fake kernel after every transaction: a frontend that works before a sync and after it works all the
// time. A frontend works if every possible path of its packets leads to backends or to a verdict.
type audit struct {
	fake    *nft.Fake
	faults  *planetest.Faults
	layout  *layout
	before  map[key]error
	during  []map[key]error
	last    map[rangeLookup]rangesAndRules // after the previous transaction
	visible error
}

func newAudit(fake *nft.Fake, faults *planetest.Faults) *audit {
	return &audit{fake: fake, faults: faults, layout: newLayout()}
}

// Begin implements planetest.Audit.
func (a *audit) Begin(*planetest.Model) {
	a.before, a.during = a.frontends(), nil
	a.last, a.visible = a.rangeLookups(), nil
}

// Note implements planetest.Audit. It verifies nothing if transactions are so small that
// steps which must be together do not fit into one.
func (a *audit) Note() {
	if a.faults.Room < 24000 {
		return
	}
	a.during = append(a.during, a.frontends())
	now := a.rangeLookups()
	a.visible = errors.Join(a.visible, notYetVisible(a.last, now))
	a.last = now
}

// End implements planetest.Audit.
func (a *audit) End(*planetest.Model) error {
	if a.visible != nil {
		return a.visible
	}
	after := a.frontends()
	for k, bad := range after {
		if bad != nil {
			return fmt.Errorf("frontend %x: %w", k.name, bad)
		}
		if bad, exists := a.before[k]; !exists || bad != nil {
			continue
		}
		for i, now := range a.during {
			bad, exists := now[k]
			if !exists {
				bad = errors.New("is missing")
			}
			if bad != nil {
				return fmt.Errorf("after transaction %d of %d: frontend %d %d %x: %w", i+1, len(a.during), k.ip, k.of, k.name, bad)
			}
		}
	}
	return nil
}

// frontends returns for every frontend why it does not work; nil if it works.
func (a *audit) frontends() map[key]error {
	all := map[key]error{}
	for _, ip := range route.Families() {
		state := a.fake.Tables[tableFor(ip)]
		if state == nil {
			continue
		}
		for s := range spaces {
			for name, e := range state.Sets[a.layout[frontendElement.in(s)].Name].Elements.All() {
				v := visit{a, tableFor(ip), state, s, name}
				all[key{ip, frontendElement.in(s), name}] = v.follow(e.Data, wayElement, false)
			}
		}
	}
	return all
}

// visit follows the packets to one frontend.
type visit struct {
	*audit
	table nft.Table
	state *nft.State
	space space
	key   string
}

func (v visit) follow(data string, way object, outside bool) error {
	w := action(binary.BigEndian.Uint32([]byte(data)))
	e, ok := v.state.Sets[v.layout[way].Name].Elements.Get(data)
	if !ok {
		return fmt.Errorf("action %x: not in %s", w, v.layout[way].Name)
	}
	if err := v.chain(e.Goto); err != nil {
		return err
	}
	if w.sticky() {
		return v.sticky(w)
	}
	switch w.kind() {
	case kindReject, kindDrop:
		return nil
	case kindPlain, kindMasquerade, kindOffPod:
		return v.rows(v.layout[backendElement.in(v.space)], w.count())
	case kindOutside:
		return v.rows(v.layout[outsideBackendElement.in(v.space)], w.count())
	case kindSplit:
		return errors.Join(
			v.next(insideElement.in(v.space), splitWay, outside), v.next(outsideElement.in(v.space), splitWay, true))
	}
	return fmt.Errorf("action %x: unknown", w)
}

func (v visit) next(of, way object, outside bool) error {
	set := v.layout[of]
	e, ok := v.state.Sets[set.Name].Elements.Get(v.key)
	if !ok {
		return fmt.Errorf("not in %s", set.Name)
	}
	return v.follow(e.Data, way, outside)
}

func (v visit) rows(set nft.Set, n int) error {
	if n == 0 {
		return errors.New("has no backends")
	}
	for i := range n {
		key := nft.Key(v.key).Index(uint32(i + 1))
		if _, ok := v.state.Sets[set.Name].Elements.Get(string(key)); !ok {
			return fmt.Errorf("%s has no row %d of %d", set.Name, i, n)
		}
	}
	return nil
}

// sticky verifies that the frontend has an id, and that at least one of the numbers that clients draw has a backend.
func (v visit) sticky(w action) error {
	if e, _ := v.state.Sets[v.layout[affinityElement.in(v.space)].Name].Elements.Get(v.key); !hasID(e) {
		return fmt.Errorf("has no id in %s", v.layout[affinityElement.in(v.space)].Name)
	}
	set := v.layout[backendElement.in(v.space)]
	if w.kind() == kindOutside {
		set = v.layout[outsideBackendElement.in(v.space)]
	}
	for i := range w.drawn() {
		if _, ok := v.state.Sets[set.Name].Elements.Get(string(nft.Key(v.key).Index(number(int(w.pool()), i)))); ok {
			return nil
		}
	}
	return fmt.Errorf("%s has none of %d numbers", set.Name, w.drawn())
}

// hasID reports whether an element of a map of affinity has an id: it is odd, and larger than all numbers.
func hasID(e nft.Element) bool { return actionIn(e.Data)&isID == isID }

// chain verifies that a chain has rules.
func (v visit) chain(name string) error {
	if _, ok := v.state.Chains[name]; !ok || len(v.fake.Rules[v.table][name]) == 0 {
		return fmt.Errorf("chain %q is missing or empty", name)
	}
	return nil
}

// netipOf returns an address of the table's family.
func netipOf(t nft.Table, i int) netip.Addr {
	if t.Family == nft.IP4 {
		return netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:172:30::%d", i))
}

func backendOf(t nft.Table) netip.AddrPort {
	return netip.AddrPortFrom(map[nft.Family]netip.Addr{
		nft.IP4: netip.MustParseAddr("10.9.9.9"), nft.IP6: netip.MustParseAddr("fd00::9"),
	}[t.Family], 9)
}
