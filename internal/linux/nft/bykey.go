package nft

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nl"
)

// ExpectedKeys returns the keys that a set without ranges probably has, from the sets that were read before it: those
// without expected keys, and those that come earlier in the list. It may return other keys, and some twice. If the keys
// are right, the time to read a large set grows with its size, otherwise with the square of its size.
type ExpectedKeys struct {
	Set  string
	Keys func(*State) iter.Seq[string]
}

// order puts sets with expected keys after all others, in the order of the list.
func order(expected []ExpectedKeys, set string) int {
	return slices.IndexFunc(expected, func(e ExpectedKeys) bool { return e.Set == set })
}

const (
	// large is the number of elements from which on reading each by its key takes less
	// time than a listing of the set. The kernel begins a listing again at the first
	// element for every 32 KB: 300,000 elements take 3 s, and 0.6 s by their keys.
	large = 1 << 16

	// keysPerRequest is how many elements are requested at once. The kernel counts about
	// 1 KB of the receive buffer for each answer.
	keysPerRequest = 64
)

// readExpected reads a set by the expected keys; ok is false if the set is small, has other
// elements, or if the kernel does not report how many it has.
func (x *exchange) readExpected(set string, keys iter.Seq[string]) (elements Elements, ok bool, err error) {
	count, err := x.count(set)
	if err != nil || count < x.large {
		return nil, false, err
	}
	elements, ok, err = x.byKeys(set, keys, count)
	if errors.Is(err, unix.ENOBUFS) { // and answers are lost
		x.large = math.MaxInt
		return nil, false, fmt.Errorf("read set %s: %w: %w", set, err, unix.EINTR)
	}
	if err != nil || !ok {
		return nil, false, err
	}
	after, err := x.count(set)
	return elements, after == count && err == nil, err
}

// count returns the number of elements of a set, without one for all other keys; 0 if
// the kernel does not report it. Linux 6.18 does, 6.1 does not.
func (x *exchange) count(set string) (int, error) {
	const setCount = 20 // NFTA_SET_COUNT (nf_tables.h)
	x.begin(unix.NFT_MSG_GETSET, unix.NLM_F_ACK)
	x.text(unix.NFTA_SET_NAME, set)
	n, err := x.readNumber(setCount)
	if err != nil {
		return 0, fmt.Errorf("read number of elements of set %s: %w", set, err)
	}
	return int(n), nil
}

// byKeys reads the elements with these keys until it has all count elements of the set; ok
// is false if the set has others, or if the kernel refuses.
func (x *exchange) byKeys(set string, keys iter.Seq[string], count int) (elements Elements, ok bool, err error) {
	elements = make(Elements, count)
	put := func(e received) { elements.Put(e.Element) }
	batch := make([]string, 0, keysPerRequest)
	missing := 0
	for key := range keys {
		if batch = append(batch, key); len(batch) == keysPerRequest {
			missed, err := x.batch(set, batch, put)
			if missing += missed; err != nil || missing > count {
				return nil, false, unlessRefused(err)
			}
			if batch = batch[:0]; len(elements) == count {
				break
			}
		}
	}
	if _, err := x.batch(set, batch, put); err != nil {
		return nil, false, unlessRefused(err)
	}
	return elements, len(elements) == count, nil
}

// batch yields the elements with these keys, and returns how many do not exist. The kernel answers up to the first that
// does not exist.
func (x *exchange) batch(set string, keys []string, yield func(received)) (missing int, err error) {
	for len(keys) > 0 {
		x.beginElements(unix.NLM_F_ACK, set)
		x.appendKeys(keys)
		found := 0
		err := x.do(func(m netlink.Message) error {
			return decodeElements(m.Data[nfgenHeader:], keys[min(found, len(keys)-1)], func(e received) {
				yield(e)
				found++
			})
		})
		switch {
		case err == nil:
			return missing, nil
		case !errors.Is(err, unix.ENOENT) || found >= len(keys):
			return missing, err
		}
		missing++
		keys = keys[found+1:]
	}
	return missing, nil
}

func (x *exchange) appendKeys(keys []string) {
	x.request = nl.AppendNested(x.request, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		for _, key := range keys {
			b = nl.AppendNested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
				return appendValue(b, unix.NFTA_SET_ELEM_KEY, key)
			})
		}
		return b
	})
}

// unlessRefused returns an error, unless it is the kernel's refusal of a request.
func unlessRefused(err error) error {
	if _, refused := errors.AsType[*netlink.OpError](err); refused {
		return nil
	}
	return err
}
