// Package process measures this process. On Linux it also finds processes of this machine
// by their name or a socket, and describes them.
package process
