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

// Partial is a Plan that leaves out parts of large Services that the kernel does not hold,
// so that everything else is written soon.
type Partial interface {
	// Left returns these Services as the kernel holds them after the Plan, sorted by name.
	// The caller writes the rest as changes of them.
	Left() []*route.Service
}
