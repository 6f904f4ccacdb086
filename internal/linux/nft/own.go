package nft

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Own are the netlink ports through which this program writes nf_tables of a network namespace. Watches ignore what
// is written through them. The zero value has none.
type Own struct {
	mu      sync.Mutex
	ports   []uint32
	watches []*Watch
}

// update changes ports or watches, and the filters of all watches. A watch whose filter the kernel refuses receives
// our own messages, too, and drops them by has.
func (o *Own) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	for _, w := range o.watches {
		_ = w.ignore(o.ports)
	}
}

func (o *Own) add(port uint32) { o.update(func() { o.ports = append(o.ports, port) }) }

// remove must be called before a socket is closed: ports are process numbers, and a program in another container may
// get this one next.
func (o *Own) remove(port uint32) {
	o.update(func() { o.ports = slices.DeleteFunc(o.ports, func(p uint32) bool { return p == port }) })
}

func (o *Own) has(port uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.ports, port)
}

// Program makes watches ignore a program that this process has started, until ended is called. It must be called
// before the program writes, and ended after the program has ended. The netlink port of a program is its process ID
// (net/netlink/af_netlink.c, netlink_autobind). If another socket in the namespace has that port, watches report the
// writes of the program. If that socket is still open at the end, it may have had the port all the time, in a
// container with process IDs of its own: watches have ignored its writes, and report that.
func (o *Own) Program(pid int) (ended func()) {
	port := uint32(pid)
	o.add(port)
	return func() {
		taken := portTaken(port)
		o.remove(port)
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, w := range o.watches {
			if taken {
				w.Report(Edit{What: Lost})
			}
		}
	}
}

// portTaken reports whether a netlink socket of netfilter in the calling thread's network namespace has this port. It
// returns false if that cannot be read.
func portTaken(port uint32) bool {
	file, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // it was only read from
	protocol, number := strconv.Itoa(unix.NETLINK_NETFILTER), strconv.FormatUint(uint64(port), 10)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 2 && f[1] == protocol && f[2] == number {
			return true
		}
	}
	return false
}
