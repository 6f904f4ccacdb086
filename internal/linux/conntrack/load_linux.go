package conntrack

import (
	"context"
	"fmt"

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

// Load reads the Load of the table.
func (t *Table) Load() (l Load, err error) {
	for _, h := range []netlink.Header{{Type: msgStats}, {Type: msgStatsPerCPU, Flags: netlink.Dump}} {
		if err := t.query(context.Background(), netlink.Message{Header: h, Data: header(IPv4)}, l.add); err != nil {
			return l, fmt.Errorf("read the statistics of conntrack: %w%s", err, remedy(err))
		}
	}
	return l, nil
}

// add adds a message: the state of the table, or the counters of one CPU.
func (l *Load) add(m netlink.Message) error {
	if len(m.Data) < nfgenHeaderLen {
		return errShort
	}
	return nl.Walk(m.Data[nfgenHeaderLen:], func(typ uint16, data []byte) error {
		var n uint32
		err := number(&n, data)
		switch [2]int{int(m.Header.Type), int(typ)} {
		case [2]int{msgStats, ctaStatsEntries}:
			l.Entries = n
		case [2]int{msgStats, ctaStatsMaxEntries}:
			l.Limit = n
		case [2]int{msgStatsPerCPU, ctaStatsInsertFailed}:
			l.InsertFailed += uint64(n)
		case [2]int{msgStatsPerCPU, ctaStatsEarlyDrop}:
			l.EarlyDropped += uint64(n)
		}
		return err
	})
}
