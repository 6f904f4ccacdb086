package nft

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PortTaken reports whether a netlink socket of netfilter in the calling
// thread's network namespace has this port. Where that cannot be read, none has.
func PortTaken(port uint32) bool {
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
