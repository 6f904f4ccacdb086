package nft

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Found is an element that Get has found.
type Found struct {
	Data string
	Left time.Duration // until the kernel deletes it, unless it is updated; 0: it stays
}

// Get reads one element by its key; ok is false if there is none, or no such set.
func (c *Conn) Get(t Table, set, key string) (found Found, ok bool, err error) {
	x, err := c.exchange(t)
	if err != nil {
		return found, false, err
	}
	x.beginElements(unix.NLM_F_ACK, set)
	x.appendKeys([]string{key})
	err = c.sock.SetDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		err = x.do(func(attributes []byte) error {
			return decodeElements(attributes, key, func(e received) {
				if e.Key == key { // it may be that for all other keys
					found, ok = Found{e.Data, e.left}, true
				}
			})
		})
	}
	if errors.Is(err, unix.ENOENT) {
		return Found{}, false, nil
	}
	if err != nil {
		return Found{}, false, fmt.Errorf("read an element of set %s: %w", set, errors.Join(err, c.redial()))
	}
	return found, ok, nil
}
