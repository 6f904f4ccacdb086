package bpf

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/slots"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/lab"
)

const vip = "10.96.0.1:80"

// scheduled is a Service over TCP whose frontend has a scheduler, with as many slots as backends.
func scheduled(n *node, change func(*Frontend)) []string {
	backends := []string{"127.0.0.1:8080", "127.0.0.2:8080", "127.0.0.3:8080", "127.0.0.4:8080"}
	f := Frontend{
		At: netip.MustParseAddrPort(vip), Protocol: unix.IPPROTO_TCP, Clients: OfNode, Pool: Pool{7, 15: 1},
		Count: len(backends),
	}
	change(&f)
	list := []Entry{f.Entry()}
	for i, b := range backends {
		serve(n.t, n.opt.NetNS, b)
		list = append(list, Slot{f.Pool, i, netip.MustParseAddrPort(b), 1}.Entry(),
			Member{f.Pool, netip.MustParseAddrPort(b)}.Entry())
	}
	n.write(list...)
	return backends
}

// With ByHash all connections of the node have the backend of its primary address, or, while that is new and passes
// them on, the one that Rehash names.
func TestByHash(t *testing.T) {
	n := newNode(t)
	backends := scheduled(n, func(f *Frontend) { f.Scheduler, f.SlowStart = ByHash, true })
	hit, passedOn := map[string]bool{}, 0
	for i := range 16 {
		primary := netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)})
		n.know(n.opt.NetNS, primary.String())
		if i == 4 {
			n.ramp(backends[0], time.Hour)
		}
		number := slots.HashClient(primary)
		want := backends[slots.Scale(number, 4)]
		first := want
		for range Draws - 1 {
			if i < 4 || want != backends[0] || number&0xff < leastPart {
				break
			}
			number = Rehash(number)
			want = backends[slots.Scale(number, 4)]
		}
		if want != first {
			passedOn++
		}
		for range 3 {
			n.run(func() error { return answers(vip, want) })
		}
		hit[want] = true
	}
	if len(hit) < 3 || passedOn == 0 {
		t.Errorf("16 addresses have the backends %v, %d of them another than the first; want nearly all, and some",
			hit, passedOn)
	}
}

func answers(service, want string) error {
	answered, _, err := ask(service)
	if err == nil && answered != want {
		err = fmt.Errorf("%s answers, want %s", answered, want)
	}
	return err
}

// The programs compute the same hash of a pod as package slots.
func TestByHashOfPods(t *testing.T) {
	n := newNode(t)
	var list []Entry
	backend := func(own netip.Addr, slot int) string {
		if own.Is4() {
			return fmt.Sprint("127.0.0.1:", 8080+slot)
		}
		return fmt.Sprint("[::1]:", 8080+slot)
	}
	services := map[bool]string{true: vip, false: "[fd00::1]:80"}
	for is4, at := range services {
		f := Frontend{
			At: netip.MustParseAddrPort(at), Protocol: unix.IPPROTO_TCP, Clients: OfPods, Pool: Pool{7, 15: 1}, Count: 4,
			Scheduler: ByHash,
		}
		if !is4 {
			f.Pool[0]++
		}
		list = append(list, f.Entry())
		for i := range f.Count {
			list = append(list, Slot{f.Pool, i, netip.MustParseAddrPort(backend(f.At.Addr(), i)), 1}.Entry())
		}
	}
	n.write(list...)
	hit := map[string]bool{}
	for i := range 16 {
		own := netip.AddrFrom4([4]byte{10, 1, byte(i), byte(3 * i)})
		if i >= 8 {
			own = netip.AddrFrom16([16]byte{0xfd, 0, 3: byte(i), 7: byte(7 * i), 15: byte(3 * i)})
		}
		pod := kerneltest.Namespace(t)
		address4(t, pod, netip.PrefixFrom(own, own.BitLen()).String())
		for k := range 4 {
			serve(t, pod, backend(own, k))
		}
		n.know(pod, own.String())
		inside := lab.Inside(t, n.opt.Cgroup, pod)
		want := backend(own, slots.Of(own, 4))
		hit[want] = true
		if err := inside(func() error { return answers(services[own.Is4()], want) }); err != nil {
			t.Errorf("%s: %v", own, err)
		}
	}
	if len(hit) < 6 {
		t.Errorf("8 pods of each family have the backends %v, want nearly all", hit)
	}
}

// count sets the loads of backends, as user space does.
func (n *node) count(loads map[string]uint32) {
	n.t.Helper()
	counted := map[netip.AddrPort]uint32{}
	for at, l := range loads {
		counted[netip.MustParseAddrPort(at)] = l
	}
	before, err := n.conn.Loads()
	if err == nil {
		err = n.conn.SetLoads(counted, before)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// answered connects a number of times, and returns which backends have answered.
func (n *node) answered(times int) map[string]int {
	n.t.Helper()
	by := map[string]int{}
	for range times {
		n.run(func() error {
			at, _, err := ask(vip)
			by[at]++
			return err
		})
	}
	return by
}

// With ByLoad a connection goes to the backend with the fewest: those that were counted, and those since.
func TestByLoad(t *testing.T) {
	n := newNode(t)
	b := scheduled(n, func(f *Frontend) { f.Scheduler = ByLoad })
	n.count(map[string]uint32{b[0]: 3, b[1]: 0, b[2]: 3, b[3]: 2})
	want := map[string]int{b[1]: 3, b[3]: 1}
	if got := n.answered(4); !maps.Equal(got, want) {
		t.Errorf("4 connections to %v, want %v", got, want)
	}
	loads, err := n.conn.Loads()
	if l := loads[netip.MustParseAddrPort(b[1])]; err != nil || l != (Load{0, 3}) {
		t.Errorf("%v, %v; want 3 since the count", l, err)
	}
	want = map[string]int{b[0]: 1, b[1]: 1, b[2]: 1, b[3]: 1}
	if got := n.answered(4); !maps.Equal(got, want) {
		t.Errorf("4 more to %v, want one to each", got)
	}
	// The count wins, whatever happened to the connections since the last one.
	n.count(map[string]uint32{b[0]: 9, b[1]: 9, b[2]: 9, b[3]: 1})
	if got := n.answered(5); got[b[3]] != 5 {
		t.Errorf("after another count 5 connections to %v, want all to %s", got, b[3])
	}
}

// Connections that are decided while others are counted are part of the load.
func TestLoadsDuringACount(t *testing.T) {
	n := newNode(t)
	b := scheduled(n, func(f *Frontend) { f.Scheduler = ByLoad })
	n.count(map[string]uint32{b[0]: 0, b[1]: 9, b[2]: 9, b[3]: 9})
	n.answered(2)
	before, err := n.conn.Loads()
	if err != nil {
		t.Fatal(err)
	}
	n.answered(3)
	first, gone := netip.MustParseAddrPort(b[0]), netip.MustParseAddrPort(b[3])
	if err := n.conn.SetLoads(map[netip.AddrPort]uint32{first: 2}, before); err != nil {
		t.Fatal(err)
	}
	after, err := n.conn.Loads()
	if _, is := after[gone]; err != nil || after[first] != (Load{2, 3}) || is {
		t.Errorf("%v, %v; want 2 and 3 of %s, and none of %s", after, err, first, gone)
	}
}

// Of ten backends ByLoad compares Compared: one with the lowest load is found as often as it is among them. The check
// fails by chance with a probability below 1e-10. While a load is unknown it chooses by chance.
func TestByLoadComparesSome(t *testing.T) {
	n := newNode(t)
	f := Frontend{
		At: netip.MustParseAddrPort(vip), Protocol: unix.IPPROTO_TCP, Clients: OfNode, Pool: Pool{7, 15: 1}, Count: 10,
		Scheduler: ByLoad,
	}
	list, loads := []Entry{f.Entry()}, map[string]uint32{}
	const least = "127.0.0.1:8084"
	for i := range f.Count {
		at := fmt.Sprint("127.0.0.1:", 8080+i)
		serve(t, n.opt.NetNS, at)
		list = append(list, Slot{f.Pool, i, netip.MustParseAddrPort(at), 1}.Entry())
		if loads[at] = 1 << 20; at == least {
			loads[at] = 0
		}
	}
	n.write(list...)
	n.count(loads)
	const tries = 1000
	if found := n.answered(tries)[least]; outside(found, tries, float64(Compared)/float64(f.Count)) {
		t.Errorf("%d of %d connections have the backend with the lowest load", found, tries)
	}
	delete(loads, "127.0.0.1:8083")
	n.count(loads)
	// Only if it begins there, the unknown one is not among the eight.
	if found := n.answered(tries)[least]; outside(found, tries, 0.1) {
		t.Errorf("with a load that is unknown %d of %d connections have the backend with the lowest load", found, tries)
	}
}

func outside(n, tries int, chance float64) bool {
	lo, hi := lab.Bounds(tries, chance)
	return n < lo || n > hi
}

// The share of a new backend begins at a tenth, and grows.
func TestRamp(t *testing.T) {
	for name, s := range map[string]Scheduler{"by chance": ByChance, "by load": ByLoad} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			backends := scheduled(n, func(f *Frontend) { f.Scheduler, f.SlowStart = s, true })
			share := func() float64 {
				n.count(map[string]uint32{backends[0]: 0, backends[1]: 0, backends[2]: 0, backends[3]: 0})
				const tries = 300
				count := 0
				for range tries {
					n.run(func() error {
						answered, _, err := ask(vip)
						if answered == backends[0] {
							count++
						}
						return err
					})
				}
				return float64(count) / tries
			}
			n.ramp(backends[0], time.Hour)
			if parts, err := n.conn.Parts(); err != nil || len(parts) != 1 ||
				parts[Member{Pool{7, 15: 1}, netip.MustParseAddrPort(backends[0])}] != leastPart {
				t.Errorf("the part of the new one is %v, %v; want %d", parts, err, leastPart)
			}
			young := share()
			n.ramp(backends[0], time.Millisecond)
			time.Sleep(2 * time.Millisecond)
			grownUp := share()
			if parts, err := n.conn.Parts(); err != nil || len(parts) > 0 {
				t.Errorf("later the part of the new one is %v, %v; want all", parts, err)
			}
			if young > 0.1 || grownUp < 0.15 || grownUp > 0.35 {
				t.Errorf("its share is %.3f, and later %.3f; want less than 0.1, and about 0.25", young, grownUp)
			}
			if err := n.conn.Ramp(nil, 0); err != nil {
				t.Fatal(err)
			}
			left := 0
			if err := each(n.conn.maps[sockMapNewBackends], func(_, _ []byte) { left++ }); err != nil || left > 0 {
				t.Errorf("%d backends that are no longer new are noted: %v", left, err)
			}
		})
	}
}

// ramp makes a backend of the Service new.
func (n *node) ramp(backend string, window time.Duration) {
	n.t.Helper()
	if err := n.conn.Ramp([]Member{{Pool{7, 15: 1}, netip.MustParseAddrPort(backend)}}, window); err != nil {
		n.t.Fatal(err)
	}
}

// The part of a new backend is a tenth at first, grows with time, and in the end is all.
func TestPartAt(t *testing.T) {
	for now, want := range map[uint64]uint32{
		999: FullPart, 1000: leastPart, 1100: leastPart, 1500: 128, 1999: 255, 2000: FullPart,
	} {
		if got := partAt(now, 1000, 2000); got != want {
			t.Errorf("at %d: %d, want %d", now, got, want)
		}
	}
}

// reopen opens the tables with other options, as another run of the program.
func (n *node) reopen(change func(*Options)) *Conn {
	n.t.Helper()
	change(&n.opt)
	_ = n.conn.Close() // what is written is pinned
	return n.open()
}
