package forward

import "syscall"

func (p *poller) listenSCTP(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }
