//go:build linux

package lab

import (
	"encoding/binary"
	"hash/crc32"
)

// The parts of SCTP (RFC 9260) that set up an association and test it by heartbeats. Kernels
// without SCTP still translate its packets, so the lab implements it with raw sockets.

type chunkType uint8

const (
	chunkInit        chunkType = 1
	chunkInitAck     chunkType = 2
	chunkBeat        chunkType = 4
	chunkBeatAck     chunkType = 5
	chunkAbort       chunkType = 6
	chunkCookie      chunkType = 10
	chunkCookieAck   chunkType = 11
	paramBeat        uint16    = 1
	paramCookie      uint16    = 7
	initSize                   = 16 // tag, window, streams, first number
	sctpHeader                 = 12
	typeLength                 = 4 // of a chunk or a parameter
	advertisedWindow           = 65536
)

type sctpPacket struct {
	sport, dport uint16
	tag          uint32 // verification tag: the receiver's choice
	kind         chunkType
	body         []byte
}

func (p sctpPacket) encode() []byte {
	b := make([]byte, sctpHeader, sctpHeader+typeLength+len(p.body)+3)
	binary.BigEndian.PutUint16(b, p.sport)
	binary.BigEndian.PutUint16(b[2:], p.dport)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	b = append(b, byte(p.kind), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(typeLength+len(p.body)))
	b = pad(append(b, p.body...))
	binary.LittleEndian.PutUint32(b[8:], sctpChecksum(b))
	return b
}

func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// sctpChecksum is the CRC32c of a packet, its own field taken as zero.
func sctpChecksum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, b[:8])
	sum = crc32.Update(sum, table, make([]byte, 4))
	return crc32.Update(sum, table, b[12:])
}

// decodeSCTP decodes a packet; ok is false if it is damaged. It ignores all chunks but the first.
func decodeSCTP(b []byte) (p sctpPacket, ok bool) {
	if len(b) < sctpHeader+typeLength || binary.LittleEndian.Uint32(b[8:]) != sctpChecksum(b) {
		return p, false
	}
	n := int(binary.BigEndian.Uint16(b[sctpHeader+2:]))
	if n < typeLength || sctpHeader+n > len(b) {
		return p, false
	}
	return sctpPacket{
		sport: binary.BigEndian.Uint16(b), dport: binary.BigEndian.Uint16(b[2:]),
		tag:  binary.BigEndian.Uint32(b[4:]),
		kind: chunkType(b[sctpHeader]), body: b[sctpHeader+typeLength : sctpHeader+n],
	}, true
}

// initBody is the body of INIT and INIT ACK: the sender's tag, and parameters.
func initBody(tag uint32, params ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, advertisedWindow)
	b = append(b, 0, 1, 0, 1) // one stream each way
	b = binary.BigEndian.AppendUint32(b, tag)
	return append(b, params...)
}

func param(kind uint16, value []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(typeLength+len(value)))
	return append(b, value...)
}

// findParam returns the value of a parameter in a list.
func findParam(b []byte, kind uint16) []byte {
	for len(b) >= typeLength {
		n := int(binary.BigEndian.Uint16(b[2:]))
		if n < typeLength || n > len(b) {
			return nil
		}
		if binary.BigEndian.Uint16(b) == kind {
			return b[typeLength:n]
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil
}
