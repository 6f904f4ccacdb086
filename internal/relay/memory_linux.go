package relay

import (
	"os"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
)

const (
	// udpMemory limits the memory of all UDP sockets of the machine, in pages. A socket that has
	// received a datagram keeps a page of it. Containers do not have the file.
	udpMemory = "/proc/sys/net/ipv4/udp_mem"

	// portRange is the range of ports for outgoing connections of a network namespace.
	portRange = "/proc/sys/net/ipv4/ip_local_port_range"
)

// maxFlows returns how many UDP flows there may be by default, for a limit of file descriptors. They use at most half
// of udpMemory, since the kernel drops the datagrams of all programs beyond it, and three quarters of the ports, since
// each needs one and other programs do too.
func maxFlows(namespace, files int) int {
	flows := files / 8
	if memory := numbers(udpMemory); len(memory) == 3 {
		flows = min(flows, memory[2]/2)
	}
	var ports []int
	_ = netns.Do(namespace, func() error { // the Engine reports that it cannot enter the namespace
		ports = numbers(portRange)
		return nil
	})
	if len(ports) == 2 {
		flows = min(flows, (ports[1]-ports[0]+1)*3/4)
	}
	return max(flows, 1)
}

// numbers returns the numbers in a file; nil if it cannot be read.
func numbers(file string) (list []int) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for field := range strings.FieldsSeq(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}
