package bpf

import "fmt"

// mostRecounts bounds the comparisons of recount: sockets that connect and close meanwhile change the maps.
const mostRecounts = 100

// recount corrects the loads after a move: while programs of two versions ran, a socket may have been counted in several maps, or by several
// programs. It returns once two comparisons in a row find no difference, or after mostRecounts.
func (c *Conn) recount() error {
	if c.moves[sockMapCounted] == nil && c.moves[sockMapLoads] == nil {
		return nil
	}
	right := 0
	for range mostRecounts {
		wrong, err := c.wrongLoads()
		if err != nil {
			return err
		}
		for member, n := range wrong {
			if err := c.maps[sockMapLoads].Put([]byte(member), native64(n)); err != nil {
				return fmt.Errorf("correct a load: %w", err)
			}
		}
		if right++; len(wrong) > 0 {
			right = 0
		}
		if right == 2 {
			return nil
		}
	}
	return nil
}

// wrongLoads returns the correct value of each load that differs from the number of counted sockets.
func (c *Conn) wrongLoads() (map[string]uint64, error) {
	counted, err := dump(c.maps[sockMapCounted])
	if err != nil {
		return nil, fmt.Errorf("read the counted sockets: %w", err)
	}
	loads, err := dump(c.maps[sockMapLoads])
	if err != nil {
		return nil, fmt.Errorf("read the loads: %w", err)
	}
	wrong := map[string]uint64{}
	for member := range loads {
		wrong[member] = 0
	}
	for _, member := range counted {
		wrong[member]++
	}
	for member, n := range wrong {
		if loads[member] == string(native64(n)) {
			delete(wrong, member)
		}
	}
	return wrong, nil
}
