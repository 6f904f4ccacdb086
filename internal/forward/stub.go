package forward

import "syscall"

func (p *portable) listenUDP(*Listener) (server, error) { return nil, syscall.EPROTONOSUPPORT }
