package forward

import "syscall"

func (p *poller) listenUDP(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }

func (p *poller) listenSCTP(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }
