package route

// Method is how a plane chooses the backend of a new connection. Each goes by the weights of backends.
type Method uint8

// The methods.
const (
	Random Method = iota // at random, or in turn
	Hash                 // by a hash of the client's address
	Least                // the one with the fewest connections
)

// String returns the name of a method in answers.
func (m Method) String() string { return [...]string{"random", "maglev", "lc"}[m] }

// MethodOf returns the method that the name of a scheduler means outside of IPVS, and whether the name is known. The
// method is the nearest one for dh, which goes by the destination, for lblc and lblcr, which do as well until a backend
// has too many connections, and for fo and ovf, which use one backend until it fails or is full.
func MethodOf(scheduler string) (m Method, known bool) {
	switch scheduler {
	case "", "rr", "wrr", "dh", "fo", "ovf":
		return Random, true
	case "sh", "mh", "maglev":
		return Hash, true
	case "lc", "wlc", "sed", "nq", "lblc", "lblcr", "p2c", "twos":
		return Least, true
	}
	return Random, false
}

// Schedulers returns all names that MethodOf knows: those of Linux, and some that only planes have.
func Schedulers() []string {
	return []string{
		"rr", "wrr", "lc", "wlc", "sh", "mh", "maglev", "p2c", "twos", "sed", "nq", "dh", "lblc", "lblcr", "fo", "ovf",
	}
}

// Method returns the method that the scheduler of a port means outside of IPVS.
func (p *Port) Method() Method {
	m, _ := MethodOf(p.Scheduler)
	return m
}
