package relay

import (
	"fmt"
	"os"
)

// udpMemory limits the memory of all UDP sockets of the machine, in pages. A socket that has
// received a datagram keeps a page of it. Containers do not have the file.
const udpMemory = "/proc/sys/net/ipv4/udp_mem"

// maxFlows returns how many UDP flows there may be by default, for a limit of file descriptors. They use
// at most half of udpMemory, since the kernel drops the datagrams of all programs beyond it.
func maxFlows(files int) int {
	flows := files / 8
	text, err := os.ReadFile(udpMemory)
	if err != nil {
		return flows
	}
	low, pressure, limit := 0, 0, 0
	if _, err := fmt.Sscan(string(text), &low, &pressure, &limit); err != nil {
		return flows
	}
	return min(flows, limit/2)
}
