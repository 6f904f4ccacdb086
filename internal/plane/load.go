package plane

import "github.com/sluice-proxy/sluice/internal/route"

// Load says how much of one Service a plane writes, so that no Service keeps
// others waiting. The zero value sets no bounds.
type Load struct {
	// Cost estimates what a port takes in the kernel, in the plane's own unit: map
	// elements, rules. Nil: every port costs 1.
	Cost func(*route.Port) int

	// Piece is the most that one write contains, as far as the ports of a Service
	// can be divided. 0: writes are not divided.
	Piece int

	// Excess returns the size of a Service that the plane does not program, and the
	// limit with its reason. Empty: the Service is small enough. Nil: there is no
	// limit.
	Excess func(*route.Service) (size, limit string)
}

// Partial is a Plan that leaves out parts of large Services that are missing in
// the kernel, so that the rest is written soon.
type Partial interface {
	// Left returns, by name, what the kernel holds of those Services once the Plan
	// is applied. The caller writes the rest as changes from there.
	Left() []*route.Service
}
