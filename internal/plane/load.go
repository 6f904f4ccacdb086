package plane

import "github.com/sluice-proxy/sluice/internal/route"

// Load bounds what one write contains, so that no Service delays others. The zero value
// sets no bounds.
type Load struct {
	// Cost estimates the size of a port in the kernel in a unit of the plane, such as map
	// elements or rules. Nil: every port costs 1.
	Cost func(*route.Port) int

	// Piece is the largest cost of one write; a single port may cost more. 0: writes are
	// not divided.
	Piece int
}
