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
	return New(table{winipcfg.LUID(chosen.ID)}, journal{})
}

// table is the Table of the IP helper API.
type table struct{ luid winipcfg.LUID }

// Interface implements Table.
func (t table) Interface() uint64 { return uint64(t.luid) }

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
			Mark: Mark{addr, uint64(r.InterfaceLUID)}, Bits: int(r.OnLinkPrefixLength),
			Usable:    r.DadState == winipcfg.DadStatePreferred || r.DadState == winipcfg.DadStateDeprecated,
			Duplicate: r.DadState == winipcfg.DadStateDuplicate,
		})
	}
	return rows, nil
}

// Add implements Table. Windows does not choose the address as the source of other connections, and
// forgets it when it starts anew.
func (t table) Add(a netip.Addr) error {
	row, err := t.row(a)
	if err != nil {
		return err
	}
	return row.Create() // an error also if another program was first: then the address is not ours
}

// Delete implements Table.
func (t table) Delete(m Mark) error {
	row, err := table{winipcfg.LUID(m.Interface)}.row(m.Addr)
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
