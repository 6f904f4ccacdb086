package probe

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family has the differences between the families.
type family struct {
	name      string
	suffix    string // of kernel configuration names
	table     nftables.TableFamily
	addr      nftables.SetDatatype
	daddr     uint32 // offset of the destination address
	size      uint32 // of an address
	nextReg   uint32 // the register after one that holds an address
	portError uint8  // ICMP code: port unreachable
}

func families() [2]family {
	return [2]family{
		{"IPv4", "IPV4", nftables.TableFamilyIPv4, nftables.TypeIPAddr, 16, 4, unix.NFT_REG32_01, 3},
		{"IPv6", "IPV6", nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 24, 16, unix.NFT_REG32_04, 4},
	}
}

// feature is a feature that the nftables plane uses.
type feature struct {
	name   string
	config string // kernel configuration that brings it; %s is the family
	since  string // kernel version; "": before 5.4
	build  func(builder) error
}

func (f feature) remedy(in family) string {
	config := f.config
	if f.config == "CONFIG_NFT_FIB_" {
		config += in.suffix
	}
	if f.since == "" {
		return "use a kernel with " + config
	}
	return fmt.Sprintf("use kernel %s or newer with %s", f.since, config)
}

// builder adds to the throw-away table.
type builder struct {
	conn   *nftables.Conn
	table  *nftables.Table
	family family
}

func features() []feature {
	return []feature{
		{name: "NAT chains", config: "CONFIG_NFT_NAT", build: natChains},
		{name: "connection tracking state", config: "CONFIG_NFT_CT", build: ctStatus},
		{name: "random numbers (numgen)", config: "CONFIG_NFT_NUMGEN", build: numgen},
		{name: "address type look-ups (fib)", config: "CONFIG_NFT_FIB_", build: fib},
		{name: "masquerade fully-random", config: "CONFIG_NFT_MASQ", build: masquerade},
		{name: "reject in prerouting", config: "CONFIG_NFT_REJECT", since: "5.9", build: reject},
		{name: "dnat to a map of address and port", config: "CONFIG_NFT_NAT", since: "5.7", build: dnatByMap},
		{name: "verdict maps", config: "CONFIG_NF_TABLES", build: verdictMap},
		{name: "sets that packets add to, with timeouts", config: "CONFIG_NF_TABLES", build: dynamicSet},
	}
}

// chain adds a base chain with one rule. The name is that of the feature.
func (b builder) chain(c nftables.Chain, exprs ...expr.Any) {
	c.Table = b.table
	b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: b.conn.AddChain(&c), Exprs: exprs})
}

func base(name string, typ nftables.ChainType, hook *nftables.ChainHook) nftables.Chain {
	return nftables.Chain{Name: name, Type: typ, Hooknum: hook, Priority: nftables.ChainPriorityFilter}
}

// load puts the destination address into a register.
func (b builder) load(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: b.family.daddr, Len: b.family.size}
}

func natChains(b builder) error {
	b.chain(base("nat-in", nftables.ChainTypeNAT, nftables.ChainHookPrerouting))
	b.chain(base("nat-local", nftables.ChainTypeNAT, nftables.ChainHookOutput))
	return nil
}

func ctStatus(b builder) error {
	b.chain(base("ct", nftables.ChainTypeFilter, nftables.ChainHookForward),
		&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG32_00})
	return nil
}

func numgen(b builder) error {
	b.chain(base("numgen", nftables.ChainTypeFilter, nftables.ChainHookForward),
		&expr.Numgen{Register: unix.NFT_REG32_00, Modulus: 3, Type: unix.NFT_NG_RANDOM})
	return nil
}

func fib(b builder) error {
	b.chain(base("fib", nftables.ChainTypeFilter, nftables.ChainHookPrerouting),
		&expr.Fib{Register: unix.NFT_REG32_00, ResultADDRTYPE: true, FlagDADDR: true})
	return nil
}

func masquerade(b builder) error {
	b.chain(base("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting), &expr.Masq{FullyRandom: true})
	return nil
}

func reject(b builder) error {
	b.chain(base("reject", nftables.ChainTypeFilter, nftables.ChainHookPrerouting),
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: b.family.portError})
	return nil
}

func dnatByMap(b builder) error {
	end, err := nftables.ConcatSetType(b.family.addr, nftables.TypeInetService)
	if err != nil {
		return err
	}
	ends := &nftables.Set{Table: b.table, Name: "ends", IsMap: true, Concatenation: true, KeyType: end, DataType: end}
	// Each part of a concatenation fills whole registers of four bytes.
	sample := binary.BigEndian.AppendUint16(make([]byte, b.family.size), 53)
	sample = append(sample, 0, 0)
	if err := b.conn.AddSet(ends, []nftables.SetElement{{Key: sample, Val: sample}}); err != nil {
		return err
	}
	b.chain(base("dnat", nftables.ChainTypeNAT, nftables.ChainHookPrerouting),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG32_00},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG32_00, Data: []byte{unix.IPPROTO_UDP}},
		b.load(unix.NFT_REG32_00),
		&expr.Payload{DestRegister: b.family.nextReg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: ends.Name},
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: uint32(b.family.table), Specified: true,
			RegAddrMin: unix.NFT_REG32_00, RegProtoMin: b.family.nextReg,
		})
	return nil
}

func verdictMap(b builder) error {
	verdicts := &nftables.Set{
		Table: b.table, Name: "verdicts", IsMap: true, KeyType: b.family.addr, DataType: nftables.TypeVerdict,
	}
	target := b.conn.AddChain(&nftables.Chain{Table: b.table, Name: "target"})
	err := b.conn.AddSet(verdicts, []nftables.SetElement{{
		Key:         make([]byte, b.family.size),
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: target.Name},
	}})
	if err != nil {
		return err
	}
	b.chain(base("verdict", nftables.ChainTypeFilter, nftables.ChainHookPrerouting),
		b.load(unix.NFT_REG32_00),
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: verdicts.Name})
	return nil
}

func dynamicSet(b builder) error {
	seen := &nftables.Set{
		Table: b.table, Name: "seen", KeyType: b.family.addr, Dynamic: true, HasTimeout: true, Size: 16,
	}
	if err := b.conn.AddSet(seen, nil); err != nil {
		return err
	}
	b.chain(base("dynamic", nftables.ChainTypeFilter, nftables.ChainHookPrerouting),
		b.load(unix.NFT_REG32_00),
		&expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: seen.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Minute})
	return nil
}
