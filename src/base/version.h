#ifndef GS_BASE_VERSION_H
#define GS_BASE_VERSION_H

#define GS_VERSION "0.1.0"

#endif
