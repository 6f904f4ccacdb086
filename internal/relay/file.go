package relay

import (
	"errors"
	"os"
)

// errNoHandover is returned where sockets cannot be handed over.
var errNoHandover = errors.New("sockets cannot be handed over on this system")

// File returns a duplicate of the listening socket, which stays open when the Engine ends, for Spec.Inherited of
// another Engine. The caller closes it. Only Linux has it.
func (l *Listener) File() (*os.File, error) {
	s, can := l.server.(interface{ file() (*os.File, error) })
	if !can {
		return nil, errNoHandover
	}
	return s.file()
}
