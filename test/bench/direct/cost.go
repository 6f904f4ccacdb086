//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	inBatch   = 64   // packets of a batch
	flowCount = 1024 // flows, each with its conntrack entry where there are any

	// What leaves a node is dropped where the next host would receive it. The node "drop" drops all as it receives them.
	dropAll = `table netdev bench { chain in { type filter hook ingress device "%s" priority 0;
		ip protocol { tcp, udp } ip daddr != 203.0.113.0/24 counter drop
	}
}`
)

// way is what a node does with packets that enter there.
type way struct {
	name  string
	node  *lab.Host
	link  int // on the outside host
	flows [flowCount][]byte
	took  []float64 // nanoseconds of CPU time for each packet, by batch
}

// table is the table on the outside host that drops what leaves the node.
func (w *way) table() string { return fmt.Sprintf("bench-%d", w.link) }

// cost measures the CPU time that a packet costs the node where it enters: that of sending it in a loop, which includes
// all that the kernel does with it, less that of sending it to a node that drops it at once.
func cost(o options) error {
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		err := inLab(func(r *rig) error {
			ways, err := r.ways(o, protocol)
			if err != nil {
				return err
			}
			if err := r.lab.Outside.Do(func() error { return r.send(ways, o.batches) }); err != nil {
				return err
			}
			report(protocol, ways)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ways returns the nodes of all ways, with their proxies, after they have served all flows.
func (r *rig) ways(o options, protocol lab.Protocol) ([]*way, error) {
	for range 6 {
		r.pod(1)
	}
	drop, plain := r.node("node-d", "192.168.0.5"), r.nodes[2]
	ways := []*way{
		{name: "dropped", node: drop}, {name: "passed on", node: r.nodes[0]}, {name: "DNAT and masquerade", node: plain},
	}
	if err := r.begin(plain, r.nodes[0]); err != nil {
		return nil, err
	}
	if o.kubeProxy != "" {
		n := r.node("node-k", "192.168.0.6")
		if err := r.beginKubeProxy(o.kubeProxy, n); err != nil {
			return nil, err
		}
		ways = append(ways, &way{name: "kube-proxy", node: n})
	}
	drop.Nft(fmt.Sprintf(dropAll, "eth0"))
	for _, w := range ways {
		if err := r.prepare(w, protocol); err != nil {
			return nil, err
		}
	}
	return ways, nil
}

// begin starts Sluice on a node without the annotation, and on another one with it.
func (r *rig) begin(plain, direct *lab.Host) error {
	p, err := r.beginOne(plain)
	if err == nil {
		err = p.Until(limit, "the Service", func() error { return serves(plain) })
	}
	if err != nil {
		return err
	}
	r.direct, r.file = true, r.file+".direct.json"
	if p, err = r.beginOne(direct); err != nil {
		return err
	}
	return p.Until(limit, "the other nodes", func() error { return errors.Join(serves(direct), reachesAll(p, direct)) })
}

func (r *rig) beginKubeProxy(program string, node *lab.Host) error {
	if err := errors.Join(r.serveAPI(node), r.apply(0, 1, 2, 3, 4, 5)); err != nil {
		return err
	}
	p, err := r.kubeProxy(program, node)
	if err != nil {
		return err
	}
	return p.Until(limit, "the Service", func() error { return serves(node) })
}

func (r *rig) beginOne(node *lab.Host) (*harness.Process, error) {
	if err := r.apply(0, 1, 2, 3, 4, 5); err != nil {
		return nil, err
	}
	return r.sluice(node)
}

// prepare builds the packets of a way, and drops those that leave the node.
func (r *rig) prepare(w *way, protocol lab.Protocol) error {
	var near, far netlink.Link
	err := w.node.Do(func() (err error) {
		near, err = netlink.LinkByName("eth0")
		return err
	})
	if err != nil {
		return err
	}
	err = r.lab.Outside.Do(func() (err error) {
		far, err = netlink.LinkByIndex(near.Attrs().ParentIndex)
		return err
	})
	if err != nil {
		return err
	}
	w.link = far.Attrs().Index
	r.lab.Outside.Nft(strings.Replace(fmt.Sprintf(dropAll, far.Attrs().Name), "bench", w.table(), 1))
	for i := range w.flows {
		w.flows[i] = packet(protocol, near.Attrs().HardwareAddr, uint16(1024+i))
	}
	return nil
}

// packet returns a packet to the Service, with its Ethernet header: a datagram, or a TCP segment without SYN, which
// conntrack takes for one of a connection that is open.
func packet(protocol lab.Protocol, to net.HardwareAddr, port uint16) []byte {
	const size = 64
	dst := netip.MustParseAddr(vip).AsSlice()
	payload := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, port), 80)
	if protocol == lab.UDP {
		payload = append(payload, 0, size-20, 0, 0) // without a checksum
	} else {
		payload = append(payload, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, 0x10, 1, 0, 0, 0, 0, 0)
	}
	payload = append(payload, make([]byte, size-20-len(payload))...)
	if protocol == lab.TCP {
		pseudo := append(append(append([]byte{}, client...), dst...), 0, unix.IPPROTO_TCP, 0, size-20)
		binary.BigEndian.PutUint16(payload[16:], harness.Checksum(append(pseudo, payload...)))
	}
	header := append([]byte{0x45, 0, 0, size, 0, 0, 0x40, 0, 64, byte(protocol), 0, 0}, client...)
	header = append(header, dst...)
	binary.BigEndian.PutUint16(header[10:], harness.Checksum(header))
	b := append(append(slices.Clone(to), 2, 0, 0, 0, 0, 0xfe), 8, 0)
	return append(append(b, header...), payload...)
}

// client is the address of all clients.
var client = []byte{203, 0, 113, 2}

// send sends batches to all ways in turn, on one processor.
func (r *rig) send(ways []*way, batches int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // all was sent
	var cpu unix.CPUSet
	cpu.Set(runtime.NumCPU() - 1)
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		return err
	}
	links := make([]*unix.SockaddrLinklayer, len(ways))
	for i, w := range ways {
		links[i] = &unix.SockaddrLinklayer{Ifindex: w.link}
	}
	for n := range batches + flowCount/inBatch {
		for _, i := range rand.Perm(len(ways)) {
			w := ways[i]
			began, err := cpuTime()
			for k := range inBatch {
				err = errors.Join(err, unix.Sendto(fd, w.flows[(n*inBatch+k)%flowCount], 0, links[i]))
			}
			ended, endErr := cpuTime()
			if err := errors.Join(err, endErr); err != nil {
				return err
			}
			if n >= flowCount/inBatch { // before that flows begin
				w.took = append(w.took, float64(ended-began)/inBatch)
			}
		}
	}
	return r.verify(ways, (batches+flowCount/inBatch)*inBatch)
}

func cpuTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// verify returns an error if a way has not sent all packets on.
func (r *rig) verify(ways []*way, packets int) error {
	for _, w := range ways {
		text, err := r.lab.Outside.Run("", "nft", "list", "table", "netdev", w.table())
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(text, "counter packets ")
		count, _, _ := strings.Cut(rest, " ")
		got, err := strconv.Atoi(count)
		if err != nil {
			return err
		}
		want := packets
		if w.name == "dropped" {
			want = 0
		}
		if got < want || got > want+want/100 {
			return fmt.Errorf("%s: %d packets left the node, want %d", w.name, got, want)
		}
	}
	return nil
}

// report prints the distributions, and that of the ratio to the way "DNAT and masquerade" of the same round.
func report(protocol lab.Protocol, ways []*way) {
	fmt.Printf("\n| %s: CPU time of a packet, ns | p50 | less that of a dropped one: p10 | p50 | p90 "+
		"| ratio to DNAT and masquerade: p10 | p50 | p90 |\n|---|---:|---:|---:|---:|---:|---:|---:|\n", protocol)
	at := func(list []float64, q float64) float64 {
		list = slices.Sorted(slices.Values(list))
		return list[int(q*float64(len(list)-1))]
	}
	base := at(ways[0].took, 0.5)
	for _, w := range ways {
		var net, ratio []float64
		for i := range w.took {
			net = append(net, w.took[i]-base)
			ratio = append(ratio, (w.took[i]-base)/(ways[2].took[i]-base))
		}
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f | %.2f | %.2f | %.2f |\n", w.name, at(w.took, .5),
			at(net, .1), at(net, .5), at(net, .9), at(ratio, .1), at(ratio, .5), at(ratio, .9))
	}
}
