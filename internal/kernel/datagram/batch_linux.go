// Package datagram receives and sends UDP datagrams in batches, with the address of this host to
// which a datagram was sent, and sends ICMP errors about them.
package datagram

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Path is where a datagram comes from and to which address of this host it was sent. It has no
// pointers, so that a large map of paths costs the garbage collector nothing.
type Path struct {
	client, local [16]byte
	zone          uint32 // index of the interface, if the client has a link-local address
	port          uint16
	v6            bool
}

// PathOf returns the Path from a client, with the index of the interface if it has a link-local address,
// to an address of this host.
func PathOf(client netip.AddrPort, zone uint32, local netip.Addr) Path {
	p := Path{port: client.Port(), zone: zone, v6: client.Addr().Is6()}
	copy(p.client[:], client.Addr().AsSlice())
	copy(p.local[:], local.AsSlice())
	return p
}

// Zone returns the index of the interface, if the client has a link-local address; 0: it has none.
func (p Path) Zone() uint32 { return p.zone }

// Client returns the source of the datagram.
func (p Path) Client() netip.AddrPort {
	return netip.AddrPortFrom(p.address(p.client), p.port)
}

// Local returns the address of this host.
func (p Path) Local() netip.Addr { return p.address(p.local) }

func (p Path) address(a [16]byte) netip.Addr {
	if p.v6 {
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte(a[:4]))
}

// MaxSize is the size of the largest datagram.
const MaxSize = 65535

// ancillary is room for one IP_PKTINFO or IPV6_PKTINFO.
type ancillary struct {
	header unix.Cmsghdr
	data   [24]byte
}

// Batch has room for datagrams. It is not safe for concurrent use.
type Batch struct {
	headers  []unix.Mmsghdr
	vectors  []unix.Iovec
	names    []unix.RawSockaddrInet6 // also large enough for IPv4
	controls []ancillary
	data     []byte
}

// NewBatch returns a Batch with room for n datagrams of MaxSize.
func NewBatch(n int) *Batch {
	b := &Batch{
		headers:  make([]unix.Mmsghdr, n),
		vectors:  make([]unix.Iovec, n),
		names:    make([]unix.RawSockaddrInet6, n),
		controls: make([]ancillary, n),
		data:     make([]byte, n*MaxSize),
	}
	for i := range n {
		b.vectors[i].Base = &b.data[i*MaxSize]
		b.headers[i].Hdr.Iov = &b.vectors[i]
		b.headers[i].Hdr.SetIovlen(1)
	}
	return b
}

// Receive receives datagrams with their paths from a socket that Listen has opened, and returns how
// many.
func (b *Batch) Receive(fd int) (int, error) {
	for i := range b.headers {
		h := &b.headers[i].Hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&b.names[i])), unix.SizeofSockaddrInet6
		h.Control = (*byte)(unsafe.Pointer(&b.controls[i]))
		h.SetControllen(int(unsafe.Sizeof(b.controls[i])))
		b.vectors[i].SetLen(MaxSize)
	}
	return call(unix.SYS_RECVMMSG, fd, b.headers)
}

// Read receives datagrams from a connected socket, and returns how many.
func (b *Batch) Read(fd int) (int, error) {
	for i := range b.headers {
		h := &b.headers[i].Hdr
		h.Name, h.Namelen, h.Control = nil, 0, nil
		h.SetControllen(0)
		b.vectors[i].SetLen(MaxSize)
	}
	return call(unix.SYS_RECVMMSG, fd, b.headers)
}

// Reply sends the datagrams from index first up to n back on a path, from the socket that received a
// datagram on it. It returns how many it sent; an error concerns the next one.
func (b *Batch) Reply(fd, first, n int, p *Path) (int, error) {
	b.names[0] = p.name()
	length := p.source(&b.controls[0])
	for i := first; i < n; i++ {
		h := &b.headers[i].Hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&b.names[0])), p.nameLength()
		h.Control = (*byte)(unsafe.Pointer(&b.controls[0]))
		h.SetControllen(length)
		b.vectors[i].SetLen(int(b.headers[i].Len))
	}
	return call(unix.SYS_SENDMMSG, fd, b.headers[first:n])
}

// call calls recvmmsg or sendmmsg.
func call(trap uintptr, fd int, headers []unix.Mmsghdr) (int, error) {
	for {
		done, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&headers[0])), uintptr(len(headers)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(done), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Data returns the content of datagram i, until the next call of Receive or Read.
func (b *Batch) Data(i int) []byte {
	return b.data[i*MaxSize:][:b.headers[i].Len]
}

// Path returns the path of datagram i after Receive.
func (b *Batch) Path(i int) Path {
	p := Path{}
	n := &b.names[i]
	p.port = binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&n.Port))[:])
	c := &b.controls[i]
	known := b.headers[i].Hdr.Controllen > 0
	if n.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(n))
		copy(p.client[:], v4.Addr[:])
		if known && c.header.Level == unix.IPPROTO_IP && c.header.Type == unix.IP_PKTINFO {
			copy(p.local[:], (*unix.Inet4Pktinfo)(unsafe.Pointer(&c.data)).Spec_dst[:])
		}
		return p
	}
	p.v6, p.client, p.zone = true, n.Addr, n.Scope_id
	if known && c.header.Level == unix.IPPROTO_IPV6 && c.header.Type == unix.IPV6_PKTINFO {
		p.local = (*unix.Inet6Pktinfo)(unsafe.Pointer(&c.data)).Addr
		if p.local[0] == 0xff { // a multicast address is no source
			p.local = [16]byte{}
		}
	}
	return p
}

// name returns the client as sockaddr.
func (p *Path) name() unix.RawSockaddrInet6 {
	n := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: p.client, Scope_id: p.zone}
	if !p.v6 {
		n = unix.RawSockaddrInet6{Family: unix.AF_INET}
		copy((*unix.RawSockaddrInet4)(unsafe.Pointer(&n)).Addr[:], p.client[:])
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&n.Port))[:], p.port)
	return n
}

func (p *Path) nameLength() uint32 {
	if p.v6 {
		return unix.SizeofSockaddrInet6
	}
	return unix.SizeofSockaddrInet4
}

// source writes an ancillary message that sets the source of a datagram to the local address, and
// returns its length.
func (p *Path) source(c *ancillary) int {
	*c = ancillary{}
	size := unix.SizeofInet4Pktinfo
	if p.v6 {
		size = unix.SizeofInet6Pktinfo
		c.header.Level, c.header.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
		info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&c.data))
		info.Addr, info.Ifindex = p.local, p.zone
	} else {
		c.header.Level, c.header.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		copy((*unix.Inet4Pktinfo)(unsafe.Pointer(&c.data)).Spec_dst[:], p.local[:])
	}
	c.header.SetLen(unix.CmsgLen(size))
	return unix.CmsgSpace(size)
}
