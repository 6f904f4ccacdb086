package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// received is an element as the kernel sends it. A range in a plain interval set is two
// elements: its first key, and the key after its last.
type received struct {
	Element
	ends bool // it is the key after a range

	packets uint64 // in its counter
	expires time.Duration

	requested string // the key that the request names, if it names one
}

// listElements lists a set again until no element is listed twice. For some milliseconds after a set has grown much,
// the kernel moves its elements, and a listing misses some and has as many others twice: each part of it continues at a
// position, not at an element (nft_set_hash.c, nft_rhash_walk).
func (x *exchange) listElements(ns *nftables.Set) (Elements, error) {
	list := x.list
	if ns.Interval && !ns.Concatenation {
		list = x.listRanges
	}
	for try := range readAttempts {
		elements, n, err := list(ns.Name)
		if err != nil || len(elements) == n {
			return elements, err
		}
		time.Sleep(time.Duration(try+1) * readPause)
	}
	return nil, fmt.Errorf("set %s: its elements move during each of %d listings", ns.Name, readAttempts)
}

// list returns the elements of a set, and how many the kernel listed.
func (x *exchange) list(set string) (elements Elements, n int, err error) {
	elements = Elements{}
	err = x.eachListed(set, func(e received) {
		elements.Put(e.Element)
		n++
	})
	return elements, n, err
}

// listRanges is list for a plain interval set.
func (x *exchange) listRanges(set string) (elements Elements, n int, err error) {
	var listed []received
	err = x.eachListed(set, func(e received) { listed = append(listed, e) })
	ranges := pair(listed)
	elements = make(Elements, len(ranges))
	for _, e := range ranges {
		elements.Put(e.Element)
	}
	return elements, len(ranges), err
}

func (x *exchange) eachListed(set string, do func(received)) error {
	x.beginElements(unix.NLM_F_DUMP, set)
	return x.do(func(m netlink.Message) error { return decodeElements(m.Data[nfgenHeader:], "", do) })
}

// beginElements begins a request about elements of a set.
func (x *exchange) beginElements(flags uint16, set string) {
	x.begin(unix.NFT_MSG_GETSETELEM, flags)
	x.text(unix.NFTA_SET_ELEM_LIST_SET, set)
}

// decodeElements calls yield for each element in a message of type NFT_MSG_NEWSETELEM, which
// may be the answer to a request for a key.
func decodeElements(attributes []byte, requested string, yield func(received)) error {
	return nl.Walk(attributes, func(typ uint16, data []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return nl.Walk(data, func(_ uint16, data []byte) error {
			e := received{requested: requested}
			if err := nl.Walk(data, e.decode); err != nil {
				return err
			}
			yield(e)
			return nil
		})
	})
}

// decode decodes an attribute of an element. It ignores those that elements of Sluice do not have.
func (e *received) decode(typ uint16, data []byte) error {
	switch typ {
	case unix.NFTA_SET_ELEM_KEY:
		return nl.Walk(data, e.decodeKey)
	case elementKeyEnd:
		return nl.Walk(data, store(&e.End, unix.NFTA_DATA_VALUE))
	case unix.NFTA_SET_ELEM_DATA:
		return nl.Walk(data, e.decodeData)
	case unix.NFTA_SET_ELEM_FLAGS:
		if len(data) != 4 {
			return errors.New("the flags of an element are malformed")
		}
		e.ends = binary.BigEndian.Uint32(data)&unix.NFT_SET_ELEM_INTERVAL_END != 0
	case unix.NFTA_SET_ELEM_EXPR:
		return nl.Walk(data, e.decodeCounter)
	case unix.NFTA_SET_ELEM_EXPIRATION:
		ms, err := number(data)
		e.expires = time.Duration(ms) * time.Millisecond
		return err
	case unix.NFTA_SET_ELEM_USERDATA:
		e.Comment = commentIn(data)
	}
	return nil
}

// decodeKey uses the memory of the requested key, if the element has it.
func (e *received) decodeKey(typ uint16, data []byte) error {
	switch {
	case typ != unix.NFTA_DATA_VALUE:
	case string(data) == e.requested:
		e.Key = e.requested
	default:
		e.Key = string(data)
	}
	return nil
}

// elementKeyEnd is NFTA_SET_ELEM_KEY_END (nf_tables.h).
const elementKeyEnd = 10

// commentIn returns the comment in user data: entries of a type, a length and so many bytes
// (libnftnl, udata.h). The decoder of google/nftables does not check the length.
func commentIn(data []byte) string {
	const header, comment = 2, 0 // NFTNL_UDATA_SET_ELEM_COMMENT
	for len(data) >= header && len(data) >= header+int(data[1]) {
		end := header + int(data[1])
		if data[0] == comment {
			return strings.TrimSuffix(string(data[header:end]), "\x00")
		}
		data = data[end:]
	}
	return ""
}

func (e *received) decodeData(typ uint16, data []byte) error {
	switch typ {
	case unix.NFTA_DATA_VALUE:
		e.Data = string(data)
	case unix.NFTA_DATA_VERDICT:
		if err := nl.Walk(data, store(&e.Goto, unix.NFTA_VERDICT_CHAIN)); err != nil {
			return err
		}
		e.Goto = strings.TrimSuffix(e.Goto, "\x00")
	}
	return nil
}

// store returns a function that stores the data of one type of attributes.
func store(text *string, want uint16) func(uint16, []byte) error {
	return func(typ uint16, data []byte) error {
		if typ == want {
			*text = string(data)
		}
		return nil
	}
}

// pair joins the two elements of each range in a plain interval set. A range without end
// reaches to the last key there is.
func pair(elements []received) []received {
	slices.SortFunc(elements, func(a, b received) int {
		switch c := strings.Compare(a.Key, b.Key); {
		case c != 0 || a.ends == b.ends:
			return c
		case a.ends: // a range ends before the next begins
			return -1
		}
		return 1
	})
	var ranges []received
	for _, e := range elements {
		switch {
		case !e.ends:
			ranges = append(ranges, e)
		case len(ranges) > 0:
			ranges[len(ranges)-1].End = e.Key
		}
	}
	return ranges
}
