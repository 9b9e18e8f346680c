"""The games of ale-py by the short ids that EnvPool uses: Pong-v5 is ALE/Pong-v5."""

GAMES = frozenset("""
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon
    BankHeist BasicMath BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout
    Carnival Casino Centipede ChopperCommand CrazyClimber Crossbow Darkchambers Defender
    DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro Entombed Et
    FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman
    HauntedHouse Hero HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo
    KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates LostLuggage MarioBros
    MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman Phoenix Pitfall
    Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
    Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris
    TicTacToe3D TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers
    VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
""".split())


def full_game_id(env_name: str) -> str:
    """`ALE/Pong-v5` for `Pong-v5`; every other name as it is."""
    name, _, version = env_name.partition("-")
    return f"ALE/{env_name}" if name in GAMES and version == "v5" else env_name
