package conntrack

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// Message types and attributes of nfnetlink_conntrack.h for statistics.
const (
	msgStatsPerCPU = 1<<8 | 4
	msgStats       = 1<<8 | 5

	ctaStatsEntries    = 1
	ctaStatsMaxEntries = 2

	ctaStatsInsertFailed = 9
	ctaStatsEarlyDrop    = 11
)

// statsTimeout bounds the wait for statistics, which the kernel sends at once.
const statsTimeout = 5 * time.Second

// Load reads the Load of the table.
func (t *Table) Load() (l Load, err error) {
	if err := t.query(msgStats, header(IPv4), l.add); err != nil {
		return l, fmt.Errorf("read the statistics of conntrack: %w%s", err, remedy(err))
	}
	return l, nil
}

// query calls fn with the answer to a request, and then with the statistics of each CPU: the kernel marks the answer as
// one of several, and the end of these statistics ends it.
func (t *Table) query(typ netlink.HeaderType, request []byte, fn func(netlink.Message) error) error {
	conn, err := dial(t.netns)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	if err := conn.SetDeadline(time.Now().Add(statsTimeout)); err != nil {
		return err
	}
	_, err = conn.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: typ, Flags: netlink.Request}, Data: request},
		{Header: netlink.Header{Type: msgStatsPerCPU, Flags: netlink.Request | netlink.Dump}, Data: header(IPv4)},
	})
	if err != nil {
		return err
	}
	for m, err := range conn.ReceiveIter() {
		if err == nil {
			err = fn(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds an answer: the state of the table, or the counts of a CPU.
func (l *Load) add(m netlink.Message) error {
	return nl.Decode(m, binary.BigEndian, func(a *netlink.AttributeDecoder) {
		switch [2]int{int(m.Header.Type), int(a.Type())} {
		case [2]int{msgStats, ctaStatsEntries}:
			l.Entries = a.Uint32()
		case [2]int{msgStats, ctaStatsMaxEntries}:
			l.Limit = a.Uint32()
		case [2]int{msgStatsPerCPU, ctaStatsInsertFailed}:
			l.InsertFailed += uint64(a.Uint32())
		case [2]int{msgStatsPerCPU, ctaStatsEarlyDrop}:
			l.EarlyDropped += uint64(a.Uint32())
		}
	})
}
