package assign

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// Open returns the Assigner of this host, for the interface that Choose returns. The error is
// ERROR_ACCESS_DENIED if this process may not add addresses.
func Open(name string) (*Assigner, error) {
	adapters, err := winipcfg.GetAdaptersAddresses(windows.AF_UNSPEC, winipcfg.GAAFlagIncludeAllInterfaces)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this host: %w", err)
	}
	var all []Candidate
	for _, a := range adapters {
		all = append(all, Candidate{uint64(a.LUID), a.FriendlyName(), a.IfType == winipcfg.IfTypeSoftwareLoopback})
	}
	chosen, err := Choose(all, name)
	if err != nil {
		return nil, err
	}
	return New(table{winipcfg.LUID(chosen.ID)})
}

// table is the Table of the IP helper API. Its mark is an address that is alone in its prefix and that Windows does
// not choose as the source of connections, on the interface that gets addresses.
type table struct{ luid winipcfg.LUID }

// Rows implements Table.
func (t table) Rows() ([]Row, error) {
	list, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	rows := make([]Row, 0, len(list))
	for i := range list {
		r := &list[i]
		addr := r.Address.Addr().WithZone("")
		rows = append(rows, Row{
			Addr:      addr,
			Marked:    r.InterfaceLUID == t.luid && int(r.OnLinkPrefixLength) == addr.BitLen() && r.SkipAsSource,
			Usable:    r.DadState == winipcfg.DadStatePreferred || r.DadState == winipcfg.DadStateDeprecated,
			Duplicate: r.DadState == winipcfg.DadStateDuplicate,
		})
	}
	return rows, nil
}

// Add implements Table. Windows forgets the address when it restarts.
func (t table) Add(a netip.Addr) error {
	row, err := t.row(a)
	if err != nil {
		return err
	}
	return row.Create() // fails if another program was first: then the address is not ours
}

// Delete implements Table.
func (t table) Delete(a netip.Addr) error {
	row, err := t.row(a)
	if err != nil {
		return err
	}
	if err := row.Delete(); !errors.Is(err, windows.ERROR_NOT_FOUND) {
		return err
	}
	return nil
}

func (t table) row(a netip.Addr) (*winipcfg.MibUnicastIPAddressRow, error) {
	row := &winipcfg.MibUnicastIPAddressRow{}
	row.Init()
	row.InterfaceLUID, row.OnLinkPrefixLength, row.SkipAsSource = t.luid, uint8(a.BitLen()), true
	return row, row.Address.SetAddrPort(netip.AddrPortFrom(a, 0))
}
